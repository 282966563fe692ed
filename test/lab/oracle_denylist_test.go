package labtest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// prefilterGroups is the key of the groups whose prefixes are blocked.
const prefilterGroups = "myelin.policy.prefilter"

// blockable are prefixes of sources that packets are made up with, and of the world. None has an address by which nodes
// reach the world: without neighbour discovery nothing would arrive there.
func blockable() []string {
	return []string{"198.51.100.0/24", "203.0.113.0/25", "8.0.0.0/8", "192.168.64.254/32", "169.254.0.0/16",
		"2001:db8:1::/48", "2600::/16"}
}

// block makes a denylist up, and returns when it is in force on both nodes.
func (z *fuzz) block(t *testing.T, round int) {
	t.Helper()
	if !z.prefilter {
		return
	}
	z.model.Blocked = nil
	var list []string
	for _, text := range blockable() {
		if z.r.IntN(3) == 0 {
			list = append(list, text)
			z.model.Blocked = append(z.model.Blocked, netip.MustParsePrefix(text))
		}
	}
	// Nodes report how many prefixes are in force. No packet has the source of one of these.
	for want := 20 + round%60; len(list) < want; {
		list = append(list, fmt.Sprintf("203.0.113.%d/32", 128+len(list)))
	}
	z.denylist = blockedGroup(list...)
	z.apply("denylist", z.denylist)
	for _, n := range z.Nodes() {
		eventually(t, n.Name()+" has the denylist", 10*time.Second, func() error {
			out, err := z.cli(n.Name(), "prefilter", "list")
			if err == nil && !strings.Contains(strings.Join(strings.Fields(out), " "),
				fmt.Sprintf("blocked %d 0 in force", len(list))) {
				err = fmt.Errorf("%d prefixes are wanted: %s", len(list), out)
			}
			return err
		})
	}
}
