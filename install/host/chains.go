package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// owner is whose chains and sets they are.
type owner struct {
	name     string
	prefixes []string // of the names of its chains and sets
}

func (o owner) has(name string) bool {
	return slices.ContainsFunc(o.prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// cleanChains removes an owner's chains of both families and kinds, as the node has tools for; without any it reports
// false.
func cleanChains(ctx context.Context, o owner, say func(string, ...any)) (tools bool, err error) {
	var errs []error
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, variant := range []string{"-legacy", "-nft", ""} {
			if _, err := exec.LookPath(family + variant + "-save"); err != nil {
				continue
			}
			// That without a variant is one of the others, and finds nothing then.
			tools = true
			errs = append(errs, cleanVariant(ctx, o, family+variant, say))
		}
	}
	return tools, errors.Join(errs...)
}

// cleanVariant has one restore do all: each table changes as one step.
func cleanVariant(ctx context.Context, o owner, variant string, say func(string, ...any)) error {
	saved, err := run(ctx, nil, variant+"-save")
	if err != nil {
		return err
	}
	script, chains := removal(saved, o)
	if chains == 0 {
		return nil
	}
	if _, err := run(ctx, []byte(script), variant+"-restore", "--noflush"); err != nil {
		return err
	}
	say("removed %d chains of %s by %s", chains, o.name, variant)
	return nil
}

// removal makes of what iptables-save wrote what iptables-restore needs to remove an owner's chains, and rules of other
// chains that lead to them.
func removal(saved string, o owner) (script string, chains int) {
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
			if name, _, _ := strings.Cut(line[1:], " "); o.has(name) {
				names = append(names, name)
			}
		case strings.HasPrefix(line, "-A "):
			chain, rest, _ := strings.Cut(line[3:], " ")
			if !o.has(chain) && o.ledToBy(rest) {
				rules = append(rules, "-D "+line[3:])
			}
		case line == "COMMIT":
			flush()
		}
	}
	return out.String(), chains
}

// ledToBy is whether a rule jumps or goes to one of the chains.
func (o owner) ledToBy(rule string) bool {
	fields := strings.Fields(rule)
	for i, f := range fields[:max(len(fields)-1, 0)] {
		if (f == "-j" || f == "-g") && o.has(fields[i+1]) {
			return true
		}
	}
	return false
}

func cleanSets(ctx context.Context, o owner, say func(string, ...any)) error {
	if _, err := exec.LookPath("ipset"); err != nil {
		return nil
	}
	list, err := run(ctx, nil, "ipset", "list", "-n")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(list) {
		if !o.has(name) {
			continue
		}
		if _, err := run(ctx, nil, "ipset", "destroy", name); err != nil {
			return err
		}
		say("removed set %s", name)
	}
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
