package node

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/ipam"
	"myelin/route"
)

// rows is desired as text, one row a line, without status.
func (d desired) text() string {
	var lines []string
	for _, a := range d.addresses {
		lines = append(lines, "address "+strings.Join(a.TableRow()[:3], " "))
	}
	for _, w := range d.wires {
		lines = append(lines, "wire "+strings.Join(w.TableRow()[:6], " "))
	}
	for _, p := range d.prefixes {
		lines = append(lines, "prefix "+strings.Join(p.TableRow()[:3], " "))
	}
	lines = append(lines, d.portless())
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// portless are the addresses of nodes on which no node port answers.
func (d desired) portless() string {
	line := "no ports on"
	for _, a := range d.addresses {
		if a.NoPorts {
			line += " " + a.Addr.String()
		}
	}
	for _, p := range d.prefixes {
		if p.NoPorts {
			line += " " + p.Prefix.String()
		}
	}
	return line
}

func prefixes(text ...string) (list []netip.Prefix) {
	for _, p := range text {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

func world() state {
	addrs := func(text ...string) (list []netip.Addr) {
		for _, a := range text {
			list = append(list, netip.MustParseAddr(a))
		}
		return list
	}
	return state{
		Config: Config{Name: "n1", IPv4: true, IPv6: true},
		nodes: []*cluster.Node{
			{Name: "n1", Addresses: addrs("192.168.0.1", "fd00::1"), PodCIDRs: prefixes("10.0.1.0/24", "fd00:1::/64")},
			{Name: "n2", Addresses: addrs("192.168.0.2", "fd00::2"), PodCIDRs: prefixes("10.0.2.0/24", "fd00:2::/64")},
		},
		devices: []*route.Device{
			{Index: 1, Name: "lo", Kind: route.Other, Up: true, Addresses: prefixes("127.0.0.1/8", "10.0.1.1/32",
				"::1/128")},
			{Index: 2, Name: "eth0", Kind: route.Wire, Up: true, MTU: 1500,
				Addresses: prefixes("192.168.0.9/24", "192.168.0.1/24", "fd00::1/64", "fe80::1/64")},
			{Index: 3, Name: "eth1", Kind: route.Wire, MTU: 1500},
			{Index: 4, Name: "myelin_vxlan", Kind: route.Tunnel, Up: true, MTU: 1450},
		},
	}
}

// Frames of a bond arrive on its ports, and those of a VLAN device on the device below it.
func TestDeriveBelow(t *testing.T) {
	s := world()
	s.devices = append(s.devices,
		&route.Device{Index: 9, Name: "bond0", Type: "bond", Kind: route.Wire, Up: true},
		&route.Device{Index: 8, Name: "p1", Master: 9}, &route.Device{Index: 7, Name: "p0", Master: 9},
		&route.Device{Index: 6, Name: "q", Master: 5},
		&route.Device{Index: 10, Name: "v5", Type: "vlan", Kind: route.Wire, Up: true,
			VLAN: &route.VLAN{ID: 5, Below: 9}},
		&route.Device{Index: 11, Name: "v6", Type: "vlan", Kind: route.Wire, Up: true, VLAN: &route.VLAN{ID: 6}})
	bond := bpf.XDPDevice{Name: "bond0", Index: 9, Type: "bond", Ports: []int{7, 8}}
	want := map[string]bpf.XDPDevice{
		"eth0": {Name: "eth0", Index: 2}, "myelin_vxlan": {Name: "myelin_vxlan", Index: 4}, "bond0": bond,
		"v5": {Name: "v5", Index: 10, Type: "vlan", VLAN: bpf.VLAN{Below: &bond, ID: 5}},
		"v6": {Name: "v6", Index: 11, Type: "vlan", VLAN: bpf.VLAN{ID: 6}},
	}
	got := map[string]bpf.XDPDevice{}
	for _, w := range derive(s).wires {
		got[w.Name] = w.xdp()
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// deriveCase is a change of world, with a line that derive returns then and one that it does not return.
type deriveCase struct {
	change     func(*state)
	want, none string
}

func deriveCases() map[string]deriveCase {
	return map[string]deriveCase{
		"own addresses, none that every host has": {want: "address 10.0.1.1 lo false", none: "address 127."},
		"no link-local ones":                      {want: "address fd00::1 eth0 false", none: "fe80"},
		"masqueraded to the node's address": {change: func(s *state) { s.Masquerade4 = true },
			want: "address 192.168.0.1 eth0 true"},
		"and to no other of the wire": {change: func(s *state) { s.Masquerade4 = true },
			want: "address 192.168.0.9 eth0 false"},
		"by family": {change: func(s *state) { s.Masquerade4 = true },
			want: "address fd00::1 eth0 false"},
		"node ports where they are wanted": {
			change: func(s *state) { s.NodePortCIDRs = prefixes("192.168.0.0/29", "fd00::2/128") },
			want:   "no ports on 10.0.1.1 192.168.0.9 fd00::1 fd00::1/128",
			none:   "no ports on 10.0.1.1 192.168.0.9 fd00::1 fd00::1/128 ",
		},
		"a wire":                      {want: "wire eth0 2 1500 192.168.0.1 fd00::1 from_wire"},
		"a wire that is down is none": {want: "wire eth0", none: "eth1"},
		"legacy routing masquerades when it sends": {change: func(s *state) { s.Legacy, s.Masquerade4 = true, true },
			want: "wire eth0 2 1500 192.168.0.1 fd00::1 from_wire,to_wire"},
		"the host is a backend": {change: func(s *state) { s.serves = true },
			want: "wire eth0 2 1500 192.168.0.1 fd00::1 from_wire,to_wire"},
		"the tunnel":        {want: "wire myelin_vxlan 4 1450 - - from_wire,to_wire"},
		"pods of all nodes": {want: "prefix 10.0.2.0/24 - pods of n2"},
		"by tunnel": {change: func(s *state) { s.Tunnel = true },
			want: "prefix fd00:2::/64 192.168.0.2 pods of n2"},
		"by an IPv6 tunnel": {
			change: func(s *state) { s.Tunnel, s.TunnelIPv6 = true, true },
			want:   "prefix 10.0.2.0/24 fd00::2 pods of n2",
		},
		"own pods by none": {change: func(s *state) { s.Tunnel = true },
			want: "prefix 10.0.1.0/24 - pods of n1"},
		"own pods as in force": {func(s *state) { s.own = &ipam.Assignment{InForce: prefixes("10.0.9.0/24")} },
			"prefix 10.0.9.0/24 - pods of n1", "10.0.1.0/24"},
		"pods in no podCIDR": {
			change: func(s *state) {
				s.outside = map[string][]netip.Prefix{"n2": prefixes("10.9.0.1/32", "fd00:9::1/128")}
			},
			want: "prefix 10.9.0.1/32 - pods of n2",
		},
		"pods in no podCIDR, by tunnel": {
			change: func(s *state) {
				s.Tunnel, s.outside = true, map[string][]netip.Prefix{"n2": prefixes("fd00:9::1/128")}
			},
			want: "prefix fd00:9::1/128 192.168.0.2 pods of n2",
		},
		"own pods of none yet": {
			change: func(s *state) { s.own = &ipam.Assignment{} },
			want:   "prefix fd00:2::/64 - pods of n2", none: "pods of n1",
		},
		"nodes": {want: "prefix 192.168.0.2/32 - node n2"},
		"what the network routes": {
			change: func(s *state) { s.NativeCIDRs = prefixes("10.9.9.9/8") },
			want:   "prefix 10.0.0.0/8 - native routing CIDR",
		},
		"the first source of a prefix counts": {
			change: func(s *state) { s.NativeCIDRs = prefixes("10.0.2.0/24") },
			want:   "prefix 10.0.2.0/24 - pods of n2", none: "native",
		},
	}
}

func TestDerive(t *testing.T) {
	for name, c := range deriveCases() {
		t.Run(name, func(t *testing.T) {
			s := world()
			if c.change != nil {
				c.change(&s)
			}
			got := derive(s).text()
			if !strings.Contains(got, c.want) || (c.none != "" && strings.Contains(got, c.none)) {
				t.Errorf("want %q, and not %q, in\n%s", c.want, c.none, got)
			}
		})
	}
}

// to_wire is attached for health checks, and leaves packets alone if it is there for them only.
func TestProbesOnly(t *testing.T) {
	for name, c := range map[string]struct {
		s    state
		want uint32
	}{
		"no checks":                  {state{}, 0},
		"checks":                     {state{probes: true}, 1},
		"the host is a backend":      {state{probes: true, serves: true}, 0},
		"policies of the host":       {state{probes: true, Config: Config{HostPolicy: true}}, 0},
		"legacy routing":             {state{probes: true, Config: Config{Legacy: true}}, 1},
		"legacy routing masquerades": {state{probes: true, Config: Config{Legacy: true, Masquerade6: true}}, 0},
	} {
		if got := c.s.probesOnly(); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
		eth0 := c.s.wire(&route.Device{Name: "eth0", Kind: route.Wire})
		if sends := slices.Contains(eth0.Hooks, bpf.ToWire); sends != (name != "no checks") {
			t.Errorf("%s: to_wire is attached: %t", name, sends)
		}
	}
}
