package proxy

import (
	"net/netip"
	"testing"

	"myelin/cluster"
	"myelin/l7/config"
	"myelin/policy"
)

// TestRules: numbers of conntrack entries select rule sets, and say whether a connection carries DNS messages.
func TestRules(t *testing.T) {
	t.Parallel()
	part := func(l7 policy.L7) []config.Part { return []config.Part{{L7: l7}} }
	pod, other := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::3")
	r, err := compile(&config.Config{
		Rules: []config.Rule{
			{Number: 1, Parts: part(policy.L7{HTTP: []policy.HTTPRule{{Path: "/a"}}})},
			{Number: 2, Parts: part(policy.L7{DNS: []policy.NamePattern{{Pattern: "*"}}})},
			{Number: 3, Parts: nil},
		},
		Endpoints: []config.Endpoint{{Pod: cluster.Key{Namespace: "n", Name: "p"}, Slot: 9,
			Addresses: []netip.Addr{pod}}},
		Records: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		numbers [2]uint32
		sets    int
		client  netip.Addr
		port    uint16
		isDNS   bool
	}{
		{[2]uint32{1, 0}, 1, other, 80, false},
		{[2]uint32{1, 3}, 2, other, 80, false},
		{[2]uint32{0, 77}, 0, other, 53, false}, // of a rule without L7
		{[2]uint32{2, 0}, 0, other, 5353, true},
		{[2]uint32{1, 2}, 1, other, 80, true},
		{[2]uint32{}, 0, pod, 53, true},
		{[2]uint32{}, 0, pod, 80, false},
		{[2]uint32{1, 0}, 1, pod, 53, false}, // its HTTP rules are enforced
	} {
		client, server := netip.AddrPortFrom(test.client, 40000), netip.AddrPortFrom(other, test.port)
		if sets, dns := len(r.of(test.numbers)), r.isDNS(client, server, test.numbers); sets != test.sets ||
			dns != test.isDNS {
			t.Errorf("%v from %s to port %d: %d sets, DNS %v", test.numbers, client, test.port, sets, dns)
		}
	}
	slots := r.slots()
	slots[other] = 1
	if !r.records || r.pods[pod] != 9 || len(r.pods) != 1 {
		t.Errorf("records %v, slots %v", r.records, r.pods)
	}
	wrong := part(policy.L7{HTTP: []policy.HTTPRule{{Path: "("}}})
	bad := config.Config{Rules: []config.Rule{{Number: 5, Parts: wrong}}}
	if _, err := compile(&bad); err == nil {
		t.Error("a wrong regular expression is compiled")
	}
}
