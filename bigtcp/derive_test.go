package bigtcp

import (
	"fmt"
	"reflect"
	"testing"

	"myelin/endpoint"
	"myelin/route"
)

const veths = 524280 // tso_max_size of veth and netkit

func device(index int, name string, kind route.Kind, tsoMax int) *route.Device {
	s := route.Sizes{GSO6: ordinary, GRO6: ordinary, GSO4: ordinary, GRO4: ordinary}
	return &route.Device{Index: index, Name: name, Kind: kind, Sizes: s, TSOMax: tsoMax}
}

func testInput() input {
	return input{
		ipv4: true, ipv6: true, kept: map[string]bool{},
		devices: []*route.Device{device(1, "lo", route.Other, veths), device(2, "eth0", route.Wire, veths),
			device(7, "lxc1", route.Pod, veths)},
		pods: []*endpoint.Endpoint{{LinkName: "lxc1", LinkIndex: 7, Namespace: "ns", Pod: "p", NetNS: "/n"},
			{LinkName: "lxc2"}, // not made yet
			{LinkName: "lxc3", LinkIndex: 8, State: endpoint.StateDeleting}},
	}
}

// text is the plan's devices with the sizes of GSO that they get.
func text(p plan) []string {
	var list []string
	for _, d := range p.devices {
		list = append(list, fmt.Sprintf("%s %s %d %d", d.Name, d.Role, d.Want.GSO6, d.Want.GSO4))
	}
	return list
}

func TestDerive(t *testing.T) {
	all := []string{"eth0 wire 196608 196608", "lxc1 pod 196608 196608"}
	for name, c := range map[string]struct {
		change func(*input)
		want   []string
		no6    string
	}{
		"both families": {func(*input) {}, all, ""},
		"IPv6":          {func(in *input) { in.ipv4 = false }, []string{"eth0 wire 196608 0", "lxc1 pod 196608 0"}, ""},
		"IPv4":          {func(in *input) { in.ipv6 = false }, []string{"eth0 wire 0 196608", "lxc1 pod 0 196608"}, ""},
		"IPv4, kernel 6.7": {func(in *input) { in.ipv6, in.together = false, true },
			[]string{"eth0 wire 196608 196608", "lxc1 pod 196608 196608"}, ""},
		"a driver with less": {func(in *input) { in.devices[1].TSOMax = 131068 },
			[]string{"eth0 wire 131068 131068", "lxc1 pod 131068 131068"}, ""},
		"a driver without": {func(in *input) { in.devices[1].TSOMax = 65536 }, nil,
			"device eth0 takes at most 65536 bytes (tso_max_size)"},
		"a driver without, later": {func(in *input) {
			in.devices[1].TSOMax, in.kept["eth0"], in.devices[2].Sizes.GSO6 = 65536, true, largest
		}, []string{"eth0 wire 0 0", "lxc1 pod 0 0"}, "device eth0 takes at most 65536 bytes (tso_max_size)"},
		"kernel 5.10": {func(in *input) {
			for _, d := range in.devices {
				d.TSOMax, d.Sizes = 0, route.Sizes{GSO6: ordinary}
			}
		}, nil, "needs kernel 5.19"},
		"kernel 6.1": {func(in *input) {
			for _, d := range in.devices {
				d.Sizes.GSO4, d.Sizes.GRO4 = 0, 0
			}
		}, []string{"eth0 wire 196608 0", "lxc1 pod 196608 0"}, ""},
		"no wire": {func(in *input) { in.devices[1].Kind = route.Other }, nil, "no device leads to other nodes"},
		"the tunnel limits": {func(in *input) {
			in.devices = append(in.devices, device(9, "myelin_vxlan", route.Tunnel, 65536))
		}, nil, "device myelin_vxlan takes at most 65536 bytes (tso_max_size)"},
		"WireGuard does not": {func(in *input) {
			in.devices = append(in.devices, device(9, "myelin_wg0", route.Encryption, 65536))
		}, all, ""},
		"VLAN on a bond": {func(in *input) {
			bond, vlan := device(3, "bond0", route.Other, veths), device(4, "bond0.5", route.Wire, veths)
			bond.Type, vlan.VLAN, in.devices[1].Master = "bond", &route.VLAN{ID: 5, Below: 3}, 3
			in.devices[1].Kind = route.Other
			in.devices = append(in.devices, bond, vlan)
		}, []string{"bond0 lower 196608 196608", "bond0.5 wire 196608 196608", "eth0 lower 196608 196608",
			"lxc1 pod 196608 196608"}, ""},
		"off": {func(in *input) { in.ipv4, in.ipv6 = false, false }, nil, ""},
		"off since then": {func(in *input) { in.ipv4, in.ipv6, in.kept["eth0"] = false, false, true },
			[]string{"eth0 wire 0 0"}, ""},
		"no wire any more": {func(in *input) { in.kept["lo"] = true },
			[]string{"eth0 wire 196608 196608", "lo lower 0 0", "lxc1 pod 196608 196608"}, ""},
	} {
		in := testInput()
		c.change(&in)
		p := derive(in)
		on := len(c.want) > 0 && c.want[0] != "eth0 wire 0 0"
		if got := text(p); !reflect.DeepEqual(got, c.want) || p.no6 != c.no6 || p.on != on {
			t.Errorf("%s: got %q, %q, want %q, %q", name, got, p.no6, c.want, c.no6)
		}
	}
}

func TestComparesTogether(t *testing.T) {
	for release, want := range map[string]bool{
		"6.3.0": true, "6.7.12-amd64": true, "6.12.3": false, "7.0": false, "x": false,
	} {
		if got := comparesTogether(release); got != want {
			t.Errorf("%s: %t", release, got)
		}
	}
}
