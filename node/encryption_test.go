package node

import (
	"maps"
	"testing"

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
		s.Encryption = "myelin_wg0"
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
