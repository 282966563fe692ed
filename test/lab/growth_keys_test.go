package labtest

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestGrowthPeers: a policy with more addresses than an idle node has room for is enforced after a few seconds, and
// opens nothing else.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐
//	│   a1    │  │   a2    │   a1 may reach the world and 9,000 other addresses, but not a2
//	└────┬────┘  └────┬────┘
//	═════╧════════════╧═════ world: a server
func TestGrowthPeers(t *testing.T) {
	t.Parallel()
	g := upGrowing(t, 4, perPacket())
	denied := g.addLane("a1→a2", 4, g.end("a1"), at(g.end("a2").addr(4), 8081), g.end("a2"), 8081)
	g.connections(t, 1)
	var policy strings.Builder
	fmt.Fprintf(&policy, "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: many, namespace: "+
		"default}\nspec:\n  podSelector: {matchLabels: {name: a1}}\n  policyTypes: [Egress]\n  egress:\n  - to:\n"+
		"    - {ipBlock: {cidr: %s/32}}\n", g.end("world").addr(4))
	for i := range 9000 {
		address := netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)})
		fmt.Fprintf(&policy, "    - {ipBlock: {cidr: %s/32}}\n", address)
	}
	g.apply("many", policy.String())
	eventually(t, "the addresses have room", 60*time.Second, func() error {
		peers, err := g.metric(`myelin_bpf_map_capacity{map_group="peers"}`)
		if err == nil && peers <= 8192 {
			err = fmt.Errorf("there is room for %.0f", peers)
		}
		return err
	})
	eventually(t, "a1→world", 30*time.Second, func() error {
		_, err := g.lanes[1].connection(t)
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience(time.Second))
	defer cancel()
	if c, err := denied.from.dialTCP(ctx, netip.AddrPort{}, denied.to); err == nil {
		c.Close()
		t.Error("a1 reaches a2, which no rule allows")
	}
}

// TestMapKeys: the keys of the chart that size maps, as map list and status show them, also after a restart, for which
// the maps keep their rows.
func TestMapKeys(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		values map[string]any
		list   []string // in the rows of map list, without blanks between columns
		status string
	}{
		"at once": {map[string]any{"bpf.preallocateMaps": true},
			[]string{"frontends Hash 0 65536 65536 65536"}, ""},
		"distributed": {map[string]any{"bpf.distributedLRU.enabled": true, "bpf.mapDynamicSizeRatio": 0.01},
			[]string{"flows LRUHash, by CPU", "(bpf.mapDynamicSizeRatio)", "frontends Hash 0 4096 4096 65536"},
			"LRU lists by CPU"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.values["kubeProxyReplacement"] = true
			c := up(t, setup{nodes: 1, pods: []string{"a"}, values: tc.values})
			for range 2 {
				list := strings.Join(strings.Fields(c.mustCLI("node1", "map", "list")), " ")
				contains(t, "map list", list, tc.list...)
				text, err := c.Node("node1").Exec(t.Context(), "myelin", "status", "--verbose")
				check(t, err)
				contains(t, "status", strings.Join(strings.Fields(text), " "), tc.status)
				check(t, c.Node("node1").RestartAgent(t.Context()))
				if list := c.mustCLI("node1", "map", "list"); strings.Contains(list, "rows copied") {
					t.Errorf("maps were made anew:\n%s", list)
				}
			}
		})
	}
}
