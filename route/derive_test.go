package route

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func dev(name, kind string, mtu int, addresses ...string) *Device {
	d := &Device{Index: int(name[len(name)-1]), Name: name, Type: kind, MTU: mtu, Up: true}
	for _, a := range addresses {
		d.Addresses = append(d.Addresses, netip.MustParsePrefix(a))
	}
	return d
}

func wireDev(name string, mtu int, addresses ...string) *Device {
	d := dev(name, "veth", mtu, addresses...)
	d.Kind = Wire
	return d
}

func stateNode(name string, addresses, podCIDRs []string) peerNode {
	row := clusterNode(name, addresses, podCIDRs)
	return peerNode{Name: name, Addresses: row.Addresses, PodCIDRs: row.PodCIDRs}
}

// lines writes routes as text, with the problem in place of the way.
func lines(d derived) (list []string) {
	for _, r := range d.Routes {
		line := r.String()
		if r.Source.IsValid() {
			line += " src " + r.Source.String()
		}
		if r.Problem != "" {
			line = r.Prefix.String() + ": " + r.Problem
		}
		list = append(list, line)
	}
	slices.Sort(list)
	return list
}

// routeCase is a state of node n1 and the routes to other nodes that follow.
type routeCase struct {
	name   string
	state  input
	routes []string
}

func (c routeCase) run(t *testing.T) {
	have := slices.DeleteFunc(lines(derive(c.state)), func(line string) bool {
		return strings.HasPrefix(line, "unreachable ")
	})
	if !slices.Equal(have, c.routes) {
		t.Errorf("routes\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(c.routes, "\n"))
	}
}

// n1 is the node itself with its wire.
func n1() (self peerNode, wires []*Device) {
	return stateNode("n1", []string{"192.168.7.1", "fd07::1"}, []string{"10.7.1.0/24", "fd70:1::/64"}),
		[]*Device{wireDev("eth0", 1500, "192.168.7.1/24", "fd07::1/64")}
}

func TestDeriveNative(t *testing.T) {
	self, wires := n1()
	for _, c := range []routeCase{
		{
			"each family by its own",
			input{Config: dual("n1"), Devices: wires, Nodes: []peerNode{
				self, stateNode("n2", []string{"192.168.7.2", "fd07::2"}, []string{"10.7.2.0/24", "fd70:2::/64"}),
			}},
			[]string{"10.7.2.0/24 via 192.168.7.2 dev eth0 src 192.168.7.1",
				"fd70:2::/64 via fd07::2 dev eth0 src fd07::1"},
		},
		{
			"second address is on-link",
			input{Config: dual("n1"), Devices: wires, Nodes: []peerNode{
				self, stateNode("n2", []string{"172.16.0.2", "192.168.7.2"}, []string{"10.7.2.0/24"}),
			}},
			[]string{"10.7.2.0/24 via 192.168.7.2 dev eth0 src 192.168.7.1"},
		},
		{
			"not on-link, no wire in common",
			input{Config: dual("n1"), Devices: wires, Nodes: []peerNode{
				self, stateNode("n2", []string{"192.168.5.2"}, []string{"10.7.2.0/24"}),
			}},
			[]string{
				"10.7.2.0/24: node n2 192.168.5.2 is not on-link on eth0: autoDirectNodeRoutes needs one L2 segment"},
		},
		{
			"not on-link, to be skipped",
			input{Config: Config{Node: "n1", IPv4: true, AutoDirectNodeRoutes: true, SkipUnreachable: true},
				Devices: wires,
				Nodes:   []peerNode{self, stateNode("n2", []string{"192.168.5.2"}, []string{"10.7.2.0/24"})}},
			nil,
		},
		{
			"no wire",
			input{Config: dual("n1"), Nodes: []peerNode{
				self, stateNode("n2", []string{"192.168.7.2"}, []string{"10.7.2.0/24"})}},
			[]string{"10.7.2.0/24: node n2 192.168.7.2 cannot be reached: there is no wire"},
		},
		{
			"two nodes announce the same: the first by name has it",
			input{Config: dual("n1"), Devices: wires, Nodes: []peerNode{
				stateNode("n3", []string{"192.168.7.3"}, []string{"10.7.2.0/24"}), self,
				stateNode("n2", []string{"192.168.7.2"}, []string{"10.7.2.0/24"}),
			}},
			[]string{"10.7.2.0/24 via 192.168.7.2 dev eth0 src 192.168.7.1",
				"10.7.2.0/24: node n3 has 10.7.2.0/24, which node n2 has already"},
		},
		{
			"native without autoDirectNodeRoutes: the network routes",
			input{Config: Config{Node: "n1", IPv4: true}, Devices: wires, Nodes: []peerNode{
				self, stateNode("n2", []string{"192.168.7.2"}, []string{"10.7.2.0/24"}),
			}},
			nil,
		},
	} {
		t.Run(c.name, c.run)
	}
}

func TestDeriveTunnel(t *testing.T) {
	self, wires := n1()
	for _, c := range []routeCase{
		{
			"tunnel: IPv6 pods over an IPv4 underlay",
			input{Config: Config{Node: "n1", IPv4: true, IPv6: true, Tunnel: "vx0"}, Devices: wires, Nodes: []peerNode{
				self, stateNode("n2", []string{"172.16.0.2"}, []string{"10.7.2.0/24", "fd70:2::/64"}),
			}},
			[]string{"10.7.2.0/24 dev vx0 src 192.168.7.1", "fd70:2::/64 dev vx0 src fd07::1"},
		},
		{
			"the node holds none of its addresses",
			input{Config: Config{Node: "n1", IPv4: true, Tunnel: "vx0"}, Nodes: []peerNode{
				self, stateNode("n2", []string{"172.16.0.2"}, []string{"10.7.2.0/24"}),
			}},
			[]string{"10.7.2.0/24 dev vx0"},
		},
		{
			"the node has no IPv6 address: the gateway's is the source",
			input{
				Config:  Config{Node: "n1", IPv6: true, Tunnel: "vx0"},
				Devices: []*Device{dev("lo", "device", 65536, "fd70:1::1/128"), wires[0]},
				Nodes: []peerNode{
					stateNode("n1", []string{"192.168.7.1"}, []string{"fd70:1::/64"}),
					stateNode("n2", []string{"192.168.7.2"}, []string{"fd70:2::/64"}),
				},
			},
			[]string{"fd70:2::/64 dev vx0 src fd70:1::1"},
		},
	} {
		t.Run(c.name, c.run)
	}
}

func TestDeriveSelf(t *testing.T) {
	d := derive(input{
		Config: Config{Node: "n1", IPv4: true, IPv6: true},
		Nodes:  []peerNode{stateNode("n1", nil, []string{"10.7.1.0/24", "fd70:1::/64"})},
		Endpoints: []localPod{{
			Link: "mye00000001", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 5},
			Addresses: []netip.Addr{netip.MustParseAddr("10.7.1.5"), netip.MustParseAddr("fd70:1::5")},
		}},
	})
	want := []string{
		"10.7.1.5/32 dev mye00000001", "fd70:1::5/128 dev mye00000001", "unreachable 10.7.1.0/24",
		"unreachable fd70:1::/64",
	}
	if have := lines(d); !slices.Equal(have, want) {
		t.Errorf("routes %q, want %q", have, want)
	}
	if len(d.Addresses) != 2 || d.Addresses[0].Prefix.String() != "10.7.1.1/32" ||
		d.Addresses[1].Prefix.String() != "fd70:1::1/128" {
		t.Errorf("addresses %+v", d.Addresses)
	}
	if len(d.Neighbours) != 2 || d.Neighbours[1].String() != "fd70:1::5 lladdr 02:00:00:00:00:05 dev mye00000001" {
		t.Errorf("neighbours %v", d.Neighbours)
	}
}

func TestDeriveNextHops(t *testing.T) {
	eth0 := wireDev("eth0", 1500, "192.168.7.1/24", "fd07::1/64")
	eth0.Gateways = []netip.Addr{netip.MustParseAddr("192.168.7.254")}
	nodes := []peerNode{
		stateNode("n1", []string{"192.168.7.1"}, nil), stateNode("n2", []string{"192.168.7.2", "fd07::2"}, nil),
		stateNode("n3", []string{"192.168.8.3"}, nil),
	}
	for name, c := range map[string]struct {
		config Config
		want   string
	}{
		"native":               {Config{Node: "n1", IPv4: true}, "192.168.7.2 fd07::2 192.168.7.254"},
		"tunnel IPv4 underlay": {Config{Node: "n1", IPv4: true, Tunnel: "vx0"}, "192.168.7.2 192.168.7.254"},
		"tunnel IPv6 underlay": {Config{Node: "n1", IPv4: true, Tunnel: "vx0", TunnelIPv6: true},
			"fd07::2 192.168.7.254"},
	} {
		var have []string
		for _, n := range derive(input{Config: c.config, Nodes: nodes, Devices: []*Device{eth0}}).NextHops {
			have = append(have, n.Address.String())
		}
		if strings.Join(have, " ") != c.want {
			t.Errorf("%s: next hops %q, want %q", name, have, c.want)
		}
	}
}

// The kernel drops routes from router advertisements when forwarding begins,
// unless accept_ra is 2 by then.
func TestAcceptRABeforeForwarding(t *testing.T) {
	rows := derive(input{Config: Config{IPv6: true}, Devices: []*Device{wireDev("eth0", 1500)}}).Sysctls
	at := func(name string) int {
		return slices.IndexFunc(rows, func(s *Sysctl) bool { return s.Name == name })
	}
	ra, forwarding := at("net/ipv6/conf/eth0/accept_ra"), at("net/ipv6/conf/all/forwarding")
	if ra < 0 || forwarding < 0 || ra > forwarding {
		t.Errorf("accept_ra is row %d, forwarding row %d", ra, forwarding)
	}
}

func TestClassify(t *testing.T) {
	eth0 := dev("eth0", "device", 1500, "192.168.7.1/24")
	dflt := dev("eth1", "device", 1500)
	dflt.Default6 = true
	slave := dev("eth2", "device", 1500, "192.168.7.1/24")
	slave.Master = 9
	detect := selection{ipv4: true, ipv6: true, tunnel: "vx0",
		addresses: []netip.Addr{netip.MustParseAddr("192.168.7.1")}}
	named := func(patterns ...string) selection { return selection{patterns: patterns, tunnel: "vx0"} }
	for _, c := range []struct {
		name      string
		selection selection
		device    *Device
		want      Kind
	}{
		{"InternalIP", detect, eth0, Wire},
		{"default route", detect, dflt, Wire},
		{"default route of a family that is off", selection{ipv4: true}, dflt, Other},
		{"port of a bridge", detect, slave, Other},
		{"tunnel", detect, dev("vx0", "vxlan", 1450), Tunnel},
		{"pod", detect, dev("mye0", "veth", 1500), Pod},
		{"pod on netkit", detect, dev("mye0", "netkit", 1500), Pod},
		{"name of a pod, but a VXLAN device", detect, dev("myelin_vxlan", "vxlan", 1500), Other},
		{"named", named("eth0"), eth0, Wire},
		{"not named", named("eth0"), dflt, Other},
		{"glob", named("eth+"), dflt, Wire},
		{"glob never takes a pod", named("my+"), dev("mye0", "veth", 1500), Pod},
		{"named port of a bridge", named("eth2"), slave, Wire},
		{"excluded", named("eth+", "!eth1"), dflt, Other},
		{"excluded first", named("!eth1", "eth+"), dflt, Other},
		{"exclusions only", named("!eth1"), eth0, Wire},
		{"exclusions only, loopback", named("!eth1"), dev("lo", "device", 65536), Other},
	} {
		if have, why := c.selection.classify(c.device); have != c.want || (have == Wire) != (why != "") {
			t.Errorf("%s: %s %q, want %s", c.name, have, why, c.want)
		}
	}
}

func TestFindMTU(t *testing.T) {
	wires := []*Device{wireDev("eth0", 9000), wireDev("eth1", 1500), dev("eth2", "device", 1000)}
	for _, c := range []struct {
		name    string
		config  Config
		devices []*Device
		want    int
		problem string
	}{
		{"smallest wire", Config{IPv4: true}, wires, 1500, ""},
		{"configured", Config{MTU: 9000}, wires, 9000, ""},
		{"tunnel over IPv4", Config{Tunnel: "vx0"}, wires, 1450, ""},
		{"tunnel over IPv6", Config{Tunnel: "vx0", TunnelIPv6: true}, wires, 1430, ""},
		{"configured with tunnel", Config{MTU: 1400, Tunnel: "vx0"}, wires, 1350, ""},
		{"encryption", Config{Encryption: "wg0"}, wires, 1420, ""},
		{"encryption with tunnel", Config{Tunnel: "vx0", TunnelIPv6: true, Encryption: "wg0"}, wires, 1420, ""},
		{"no wire", Config{}, nil, 1500, ""},
		{"loopback size", Config{MTU: 65536}, nil, 65535, ""},
		{"at the floor", Config{IPv6: true, MTU: 1330, Tunnel: "vx0"}, nil, 1280, ""},
		{
			"below the floor", Config{IPv6: true, MTU: 1329, Tunnel: "vx0"}, nil, 1279,
			"MTU of pods is 1279 (1329 of the wires (MTU: configured) - 50 of encapsulation): IPv6 needs at least 1280",
		},
		{"floor of IPv4", Config{IPv4: true, MTU: 600, Tunnel: "vx0"}, nil, 550, "IPv4 needs at least 576"},
	} {
		m, err := findMTU(c.config, c.devices)
		if m.Pod != c.want {
			t.Errorf("%s: %d, want %d", c.name, m.Pod, c.want)
		}
		if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.problem)
		}
	}
}
