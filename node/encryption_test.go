package node

import (
	"maps"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/route"
)

// Prefixes of a node with a key are reached by the WireGuard device while it is up; those of strict encryption are
// marked, but for this node's own and, if so configured, addresses of nodes.
func TestDeriveEncryption(t *testing.T) {
	type mark struct {
		encryption int
		strict     bool
	}
	for name, c := range map[string]struct {
		change func(*state)
		want   map[string]mark // by prefix, of those that are marked
	}{
		"no key": {change: func(*state) {}, want: map[string]mark{}},
		"key": {change: func(s *state) { s.nodes[1].WireGuardKey = "key" }, want: map[string]mark{
			"10.0.2.0/24": {encryption: 9}, "fd00:2::/64": {encryption: 9}, "192.168.0.2/32": {encryption: 9},
			"fd00::2/128": {encryption: 9}}},
		"own key": {change: func(s *state) { s.nodes[0].WireGuardKey = "key" }, want: map[string]mark{}},
		"device is down": {change: func(s *state) {
			s.nodes[1].WireGuardKey, s.devices[len(s.devices)-1].Up = "key", false
		}, want: map[string]mark{}},
		"detour": {change: func(s *state) {
			s.nodes[1].WireGuardKey, s.detours = "key", map[string]string{s.nodes[1].Name: "myelin_wg1"}
			s.devices = append(s.devices, &route.Device{Index: 10, Name: "myelin_wg1", Kind: route.Encryption,
				Up: true})
		}, want: map[string]mark{"10.0.2.0/24": {encryption: 10}, "fd00:2::/64": {encryption: 10},
			"192.168.0.2/32": {encryption: 10}, "fd00::2/128": {encryption: 10}}},
		"detour without a device": {change: func(s *state) {
			s.nodes[1].WireGuardKey, s.detours = "key", map[string]string{s.nodes[1].Name: "myelin_wg1"}
		}, want: map[string]mark{"10.0.2.0/24": {encryption: 9}, "fd00:2::/64": {encryption: 9},
			"192.168.0.2/32": {encryption: 9}, "fd00::2/128": {encryption: 9}}},
		"strict": {change: func(s *state) { s.StrictCIDRs = prefixes("10.0.0.0/8", "192.168.0.0/16") },
			want: map[string]mark{"10.0.0.0/8": {strict: true}, "10.0.2.0/24": {strict: true},
				"192.168.0.0/16": {strict: true}, "192.168.0.2/32": {strict: true}}},
		"strict, not for nodes": {change: func(s *state) {
			s.StrictCIDRs, s.StrictNodes = prefixes("10.0.0.0/8", "192.168.0.0/16"), true
		}, want: map[string]mark{"10.0.0.0/8": {strict: true}, "10.0.2.0/24": {strict: true},
			"192.168.0.0/16": {strict: true}}},
	} {
		s := world()
		s.Encryption, s.EncryptionType = "myelin_wg0", cluster.WireGuardType
		s.devices = append(s.devices, &route.Device{Index: 9, Name: "myelin_wg0", Kind: route.Encryption, Up: true,
			MTU: 1420, L3: true})
		c.change(&s)
		got := map[string]mark{}
		for _, p := range derive(s).prefixes {
			if m := (mark{p.Encryption, p.Strict}); m != (mark{}) {
				got[p.Prefix.String()] = m
			}
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// By IPsec, prefixes have the address that the node's encrypted packets come from, and the device a hook of its own.
func TestDeriveIPsec(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*state)
		want   map[string]string // via, by prefix of the other node
	}{
		"IPv4": {func(*state) {}, map[string]string{"10.0.2.0/24": "192.168.0.2", "fd00:2::/64": "192.168.0.2",
			"192.168.0.2/32": "192.168.0.2", "fd00::2/128": "192.168.0.2"}},
		"IPv6": {func(s *state) { s.TunnelIPv6 = true }, map[string]string{"10.0.2.0/24": "fd00::2",
			"fd00:2::/64": "fd00::2", "192.168.0.2/32": "fd00::2", "fd00::2/128": "fd00::2"}},
		"encapsulating DSR": {func(s *state) { s.ViaNodes = true }, map[string]string{"10.0.2.0/24": "192.168.0.2",
			"fd00:2::/64": "fd00::2", "192.168.0.2/32": "192.168.0.2", "fd00::2/128": "192.168.0.2"}},
	} {
		s := world()
		s.Encryption, s.EncryptionType = "myelin_ipsec0", cluster.IPsecType
		s.nodes[1].IPsec = cluster.IPsec{Epoch: "epoch", Key: 3}
		s.devices = append(s.devices, &route.Device{Index: 9, Name: "myelin_ipsec0", Kind: route.Encryption, Up: true,
			MTU: 1420, L3: true})
		c.change(&s)
		got, d := map[string]string{}, derive(s)
		for _, p := range d.prefixes {
			if p.Encryption == 9 {
				got[p.Prefix.String()] = p.Via.String()
			}
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		for _, w := range d.wires {
			if w.Own != (w.Hooks[0] == bpf.FromIPsec) {
				t.Errorf("%s: hooks of %s: %v", name, w.Name, w.Hooks)
			}
		}
	}
}

// The WireGuard device is a wire without neighbours, whose SNAT addresses are those that peers take.
func TestDeriveEncryptionDevice(t *testing.T) {
	s := world()
	s.devices = append(s.devices, &route.Device{Index: 9, Name: "myelin_wg0", Kind: route.Encryption, Up: true,
		L3: true})
	for _, w := range derive(s).wires {
		if w.Name != "myelin_wg0" {
			continue
		}
		if !w.Encrypted || !w.L3 || w.IPv4.String() != "192.168.0.1" || w.IPv6.String() != "fd00::1" {
			t.Errorf("got %+v", w)
		}
		return
	}
	t.Error("it is no wire")
}

// Addresses of nodes whose own traffic is encrypted are marked, this node's too, unless one of both opts out; native
// wires then have to_wire, and the device that encrypts has not.
func TestDeriveNodeEncryption(t *testing.T) {
	both := []string{"192.168.0.1/32", "192.168.0.2/32", "fd00::1/128", "fd00::2/128"}
	optOut := func(s *state, i int) {
		n := *s.nodes[i]
		n.Labels = map[string]string{"plain": ""}
		s.nodes[i] = &n
	}
	for name, c := range map[string]struct {
		change func(*state)
		want   []string
	}{
		"off":                  {func(s *state) { s.OptsOut = nil }, nil},
		"on":                   {func(*state) {}, both},
		"this node opts out":   {func(s *state) { optOut(s, 0) }, nil},
		"the other one does":   {func(s *state) { optOut(s, 1) }, []string{both[0], both[2]}},
		"this node is unknown": {func(s *state) { s.nodes = s.nodes[1:] }, nil},
		"no node opts out":     {func(s *state) { s.OptsOut = labels.Nothing() }, both},
	} {
		s := world()
		s.OptsOut, s.Encryption, s.EncryptionType = labels.SelectorFromSet(labels.Set{"plain": ""}), "myelin_wg0",
			cluster.WireGuardType
		s.devices = append(s.devices, &route.Device{Index: 9, Name: "myelin_wg0", Kind: route.Encryption, Up: true,
			L3: true})
		c.change(&s)
		var got []string
		d := derive(s)
		for _, p := range d.prefixes {
			if p.NodeEncrypts {
				got = append(got, p.Prefix.String())
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		for _, w := range d.wires {
			sends := slices.Contains(w.Hooks, bpf.ToWire) || slices.Contains(w.Hooks, bpf.ToWireL3)
			if want := s.OptsOut != nil && !w.Own || w.Tunnel; sends != want {
				t.Errorf("%s: hooks of %s: %v", name, w.Name, w.Hooks)
			}
		}
	}
}
