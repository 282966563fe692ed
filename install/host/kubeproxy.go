package host

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"
)

// CleanKubeProxy removes what kube-proxy leaves in the kernel when it ends: chains of iptables (of both kinds, as the
// node has tools for), nftables tables, sets, and virtual servers with their device. It works by the node's own tools,
// found by PATH: iptables-save and iptables-restore in each of their variants, nft, ipset, ipvsadm. What has no tool is
// left, as nothing of it can be there by kube-proxy's own doing. It can be repeated.
func CleanKubeProxy(ctx context.Context, say func(format string, args ...any)) error {
	proxy := kubeProxy()
	tools, err := cleanChains(ctx, proxy, say)
	if !tools {
		say("no iptables tools on this node")
	}
	return errors.Join(err, cleanTables(ctx, say), cleanSets(ctx, proxy, say), cleanServers(ctx, say))
}

// kubeProxy has chains and sets of one kind of name; kubelet's own begin alike, and hold nothing without it.
func kubeProxy() owner { return owner{name: "kube-proxy", prefixes: []string{"KUBE-"}} }

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
