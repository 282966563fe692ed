package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"
)

// CleanKubeProxy removes what kube-proxy leaves in the kernel when it ends: chains of iptables (of both kinds, as the node has tools for),
// nftables tables, sets, and virtual servers with their device. It works by the node's own tools, found by PATH: iptables-save and
// iptables-restore in each of their variants, nft, ipset, ipvsadm. What has no tool is left, as nothing of it can be there by kube-proxy's
// own doing. It can be repeated.
func CleanKubeProxy(ctx context.Context, say func(format string, args ...any)) error {
	var errs []error
	tools := false
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, variant := range []string{"-legacy", "-nft", ""} {
			if _, err := exec.LookPath(family + variant + "-save"); err != nil {
				continue
			}
			// That without a variant is one of the others, and finds nothing then.
			tools = true
			errs = append(errs, cleanChains(ctx, family+variant, say))
		}
	}
	errs = append(errs, cleanTables(ctx, say), cleanSets(ctx, say), cleanServers(ctx, say))
	if !tools {
		say("no iptables tools on this node")
	}
	return errors.Join(errs...)
}

// isKubeProxy tells chains and sets of kube-proxy; kubelet's own begin alike, and hold nothing without it.
func isKubeProxy(name string) bool { return strings.HasPrefix(name, "KUBE-") }

// cleanChains has one restore do all: each table changes as one step.
func cleanChains(ctx context.Context, variant string, say func(string, ...any)) error {
	saved, err := run(ctx, nil, variant+"-save")
	if err != nil {
		return err
	}
	script, chains := removal(saved)
	if chains == 0 {
		return nil
	}
	if _, err := run(ctx, []byte(script), variant+"-restore", "--noflush"); err != nil {
		return err
	}
	say("removed %d chains of kube-proxy by %s", chains, variant)
	return nil
}

// removal makes of what iptables-save wrote what iptables-restore needs to remove chains of kube-proxy, and rules of other chains that lead
// to them.
func removal(saved string) (script string, chains int) {
	var out strings.Builder
	var table string
	var names, rules []string
	flush := func() {
		if len(names) > 0 {
			fmt.Fprintf(&out, "*%s\n", table)
			for _, n := range names {
				fmt.Fprintf(&out, ":%s - [0:0]\n", n) // emptied, or restore would refuse to remove it
			}
			for _, r := range rules {
				fmt.Fprintln(&out, r)
			}
			for _, n := range names {
				fmt.Fprintf(&out, "-X %s\n", n)
			}
			fmt.Fprintln(&out, "COMMIT")
		}
		chains += len(names)
		names, rules = nil, nil
	}
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			if name, _, _ := strings.Cut(line[1:], " "); isKubeProxy(name) {
				names = append(names, name)
			}
		case strings.HasPrefix(line, "-A "):
			chain, rest, _ := strings.Cut(line[3:], " ")
			if !isKubeProxy(chain) && leadsToKubeProxy(rest) {
				rules = append(rules, "-D "+line[3:])
			}
		case line == "COMMIT":
			flush()
		}
	}
	return out.String(), chains
}

func leadsToKubeProxy(rule string) bool {
	fields := strings.Fields(rule)
	for i, f := range fields[:max(len(fields)-1, 0)] {
		if (f == "-j" || f == "-g") && isKubeProxy(fields[i+1]) {
			return true
		}
	}
	return false
}

// cleanTables removes those of kube-proxy's mode nftables.
func cleanTables(ctx context.Context, say func(string, ...any)) error {
	if _, err := exec.LookPath("nft"); err != nil {
		return nil
	}
	list, err := run(ctx, nil, "nft", "list", "tables")
	if err != nil {
		return err
	}
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[2] != "kube-proxy" {
			continue
		}
		if _, err := run(ctx, nil, "nft", "delete", "table", fields[1], fields[2]); err != nil {
			return err
		}
		say("removed table %s %s", fields[1], fields[2])
	}
	return nil
}

func cleanSets(ctx context.Context, say func(string, ...any)) error {
	if _, err := exec.LookPath("ipset"); err != nil {
		return nil
	}
	list, err := run(ctx, nil, "ipset", "list", "-n")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(list) {
		if !isKubeProxy(name) {
			continue
		}
		if _, err := run(ctx, nil, "ipset", "destroy", name); err != nil {
			return err
		}
		say("removed set %s", name)
	}
	return nil
}

// proxyDevice holds the addresses of Services in kube-proxy's mode ipvs.
const proxyDevice = "kube-ipvs0"

// cleanServers clears virtual servers where kube-proxy's device says that they are its own.
func cleanServers(ctx context.Context, say func(string, ...any)) error {
	device, err := netlink.LinkByName(proxyDevice)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find %s: %w", proxyDevice, err)
	}
	if _, err := exec.LookPath("ipvsadm"); err == nil {
		if _, err := run(ctx, nil, "ipvsadm", "--clear"); err != nil {
			return err
		}
		say("removed virtual servers")
	}
	if err := netlink.LinkDel(device); err != nil {
		return fmt.Errorf("remove %s: %w", proxyDevice, err)
	}
	say("removed device %s", proxyDevice)
	return nil
}

func run(ctx context.Context, in []byte, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}
