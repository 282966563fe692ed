package bpf

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

//	   a (slot 2)   b (slot 3)
//	   |            |
//	  linka        linkb                    world
//	+--------------------------+              |
//	| node, gateway gw         |--eth0--+-- router (default route)
//	|                          |        +-- node2: pods c; behind it narrow, a route with an MTU of 1400
//	|                          |        +-- node3: pods d, and lost, without a route; no neighbour entry
//	|                          |--vx0---- the tunnel's device
//	|                          |--other0- a device that is no wire: prefix other
//	|                          |--proxy0- the proxy
//	+--------------------------+  blackhole, prohibit, unreachable: routes that say so
//
// The devices are real, in a network namespace of the test, where the programs run: the kernel answers for routes.
type world struct {
	Objects
	sets     uint32 // numbers given to sets of policies
	ns, home int    // descriptors of the namespaces
	index    map[string]int
	outcomes map[string]uint32
	settings Settings
	peerXDP  link.Link      // keeps eth0p able to take frames of XDP
	pods     map[string]int // descriptors of pods' namespaces, if there are policies
	proxy    proxyPrograms
	listener uint64 // descriptor of the proxy's socket
	linear   bool   // the kernel can be told which part of a packet is linear
	takesXDP bool   // eth0 takes frames in XDP
}

func mac(n byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, n} }

func named(m net.HardwareAddr, a4, a6 string) packet.Name {
	n := packet.Name{MAC: m}
	if a4 != "" {
		n.IP4, n.IP6 = netip.MustParseAddr(a4), netip.MustParseAddr(a6)
	}
	return n
}

// worldNames are what packets are written with. gw is the gateway as a sees it, gwb as b does.
func worldNames() packet.Names {
	return packet.Names{
		"a": named(mac(0x0a), "10.1.0.10", "fd00:1::a"), "b": named(mac(0x0b), "10.1.0.11", "fd00:1::b"),
		"gw": named(mac(0x1a), "10.1.0.1", "fd00:1::1"), "gwb": named(mac(0x1b), "", ""),
		"gwc":  named(mac(0x1c), "10.2.0.1", "fd00:2::1"),
		"node": named(mac(1), "192.168.0.1", "fd00:99::1"), "node2": named(mac(2), "192.168.0.2", "fd00:99::2"),
		"node3": named(nil, "192.168.0.3", "fd00:99::3"), "router": named(mac(0xfe), "192.168.0.254", "fd00:99::fe"),
		"c": named(nil, "10.2.0.10", "fd00:2::a"), "d": named(nil, "10.3.0.10", "fd00:3::a"),
		"narrow": named(nil, "10.4.0.10", "fd00:4::a"), "other": named(nil, "10.5.0.10", "fd00:5::a"),
		"lost": named(nil, "10.7.0.10", "fd00:7::a"),
		"gone": named(nil, "10.1.0.99", "fd00:1::99"), "world": named(nil, "198.51.100.7", "2001:db8::7"),
		"world2":    named(nil, "198.51.100.8", "2001:db8::8"),
		"stranger":  named(mac(0x66), "203.0.113.9", "2001:db8:9::9"),
		"blackhole": named(nil, "10.66.0.1", "fd00:66::66"), "prohibit": named(nil, "10.67.0.1", "fd00:67::67"),
		"unreachable": named(nil, "10.68.0.1", "fd00:68::68"),
		"proxy":       named(mac(0x2a), "", ""), "gwp": named(mac(0x2b), "", ""),
		"vip": named(nil, "10.96.0.10", "fd00:96::10"), "lb": named(nil, "203.0.113.50", "2001:db8:50::50"),
	}
}

// settingsOf is the plainest configuration, as changed.
func settingsOf(change ...func(*Settings)) Settings {
	s := Settings{Ipv4: 1, Ipv6: 1, Vni: 1, NatPortMin: 50000, NatPortMax: 50000}
	gw := worldNames()["gw"]
	s.Gateway4, s.Gateway6 = Addr(gw.IP4), Addr(gw.IP6)
	for _, c := range change {
		c(&s)
	}
	return s
}

func masquerading(s *Settings) { s.Masquerade4, s.Masquerade6 = 1, 1 }
func tracking(s *Settings)     { s.FlowAlways = 1 }
func longTimes(s *Settings)    { s.Hz = 1000 } // whatever ends by time takes so many times as long
func legacy(s *Settings)       { s.LegacyRouting = 1 }
func tunnel4(s *Settings)      { s.Tunnel = uint8(DatapathTunnelModeTUNNEL_IPV4) }
func tunnel6(s *Settings)      { s.Tunnel = uint8(DatapathTunnelModeTUNNEL_IPV6) }

// newWorld makes the devices and loads the datapath; tweak, if not nil, changes it before.
func newWorld(t testing.TB, s Settings, tweak func(*ebpf.CollectionSpec)) *world {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	w := &world{index: map[string]int{}}
	w.makeNamespace(t)
	defer w.enter(t)()
	w.makeDevices(t)
	w.makeRoutes(t)
	if s.Tunnel != 0 {
		s.TunnelIfindex = uint32(w.index["vx0"])
	}
	w.load(t, s, tweak)
	w.fill(t)
	if s.Policy != 0 {
		w.makePodNamespaces(t)
	}
	_, err := packettest.Run(w.ToPod, make([]byte, 100), packettest.Options{Linear: 60})
	w.linear = err == nil
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openNamespace(t testing.TB) int {
	t.Helper()
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func (w *world) makeNamespace(t testing.TB) {
	runtime.LockOSThread()
	w.home = openNamespace(t)
	must(t, unix.Unshare(unix.CLONE_NEWNET))
	w.ns = openNamespace(t)
	must(t, unix.Setns(w.home, unix.CLONE_NEWNET))
	runtime.UnlockOSThread()
}

// enterAnyCPU moves the calling goroutine's thread into the world, until the function that it returns is called.
func (w *world) enterAnyCPU(t testing.TB) (leave func()) {
	t.Helper()
	runtime.LockOSThread()
	must(t, unix.Setns(w.ns, unix.CLONE_NEWNET))
	return func() {
		if unix.Setns(w.home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
	}
}

// enter does so, too, and keeps the thread on one CPU: what packets leave behind is in part the CPU's own.
func (w *world) enter(t testing.TB) (leave func()) {
	t.Helper()
	leaveWorld := w.enterAnyCPU(t)
	var had, one unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &had))
	for cpu := 0; one.Count() == 0; cpu++ {
		if had.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	must(t, unix.SchedSetaffinity(0, &one))
	return func() {
		if unix.SchedSetaffinity(0, &had) == nil {
			leaveWorld()
		}
	}
}

func sysctl(t testing.TB, name, value string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0o644))
}

func (w *world) makeDevices(t testing.TB) {
	t.Helper()
	sysctl(t, "ipv4/ip_forward", "1")
	sysctl(t, "ipv6/conf/all/forwarding", "1")
	sysctl(t, "ipv6/conf/default/accept_dad", "0")
	n := worldNames()
	for _, d := range []struct {
		name string
		mac  net.HardwareAddr
	}{{"linka", n["gw"].MAC}, {"linkb", n["gwb"].MAC}, {"eth0", n["node"].MAC}, {"other0", mac(0x70)},
		{"proxy0", n["gwp"].MAC}} {
		link := netlink.LinkAttrs{Name: d.name, HardwareAddr: d.mac, MTU: 1500}
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: link, PeerName: d.name + "p"}); err != nil {
			t.Fatalf("make %s: %v", d.name, err)
		}
		w.up(t, d.name+"p")
		w.up(t, d.name)
	}
	vx := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "vx0", HardwareAddr: mac(0x80)}, FlowBased: true,
		Port: 8472, UDP6ZeroCSumTx: true, UDP6ZeroCSumRx: true}
	if err := netlink.LinkAdd(vx); err != nil {
		t.Fatalf("make vx0: %v", err)
	}
	w.up(t, "vx0")
	w.up(t, "lo")
	w.address(t, "lo", n["gw"].IP4, 32)
	w.address(t, "lo", n["gw"].IP6, 128)
	w.address(t, "eth0", n["node"].IP4, 24)
	w.address(t, "eth0", n["node"].IP6, 64)
}

func (w *world) up(t testing.TB, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	w.index[name] = l.Attrs().Index
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatalf("set %s up: %v", name, err)
	}
}

func (w *world) address(t testing.TB, device string, a netip.Addr, bits int) {
	t.Helper()
	l, err := netlink.LinkByName(device)
	must(t, err)
	err = netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, bits)), Flags: unix.IFA_F_NODAD})
	if err != nil {
		t.Fatalf("add %s to %s: %v", a, device, err)
	}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// around is the prefix that an address is in.
func around(a netip.Addr) netip.Prefix {
	bits := 24
	if a.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(a, bits).Masked()
}

func families(n packet.Name) []netip.Addr { return []netip.Addr{n.IP4, n.IP6} }

func (w *world) makeRoutes(t testing.TB) {
	t.Helper()
	n := worldNames()
	eth0 := w.index["eth0"]
	for _, name := range []string{"node2", "router"} {
		for _, a := range families(n[name]) {
			must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: eth0, IP: a.AsSlice(), HardwareAddr: n[name].MAC,
				State: netlink.NUD_PERMANENT}))
		}
	}
	for i := range 2 {
		via := func(name string) net.IP { return families(n[name])[i].AsSlice() }
		to := func(name string) *net.IPNet { return ipNet(around(families(n[name])[i])) }
		w.route(t, &netlink.Route{Dst: to("c"), Gw: via("node2"), LinkIndex: eth0})
		w.route(t, &netlink.Route{Dst: to("d"), Gw: via("node3"), LinkIndex: eth0})
		// bpf_fib_lookup ignores an MTU without MTULock.
		w.route(t, &netlink.Route{Dst: to("narrow"), Gw: via("node2"), LinkIndex: eth0, MTU: 1400, MTULock: true})
		w.route(t, &netlink.Route{Dst: to("other"), LinkIndex: w.index["other0"], Scope: netlink.SCOPE_LINK})
		w.route(t, &netlink.Route{Dst: to("blackhole"), Type: unix.RTN_BLACKHOLE})
		w.route(t, &netlink.Route{Dst: to("prohibit"), Type: unix.RTN_PROHIBIT})
		w.route(t, &netlink.Route{Dst: to("unreachable"), Type: unix.RTN_UNREACHABLE})
		w.route(t, &netlink.Route{Dst: ipNet(around(families(n["world"])[i])), Gw: via("router"), LinkIndex: eth0})
	}
}

func (w *world) route(t testing.TB, r *netlink.Route) {
	t.Helper()
	if err := netlink.RouteAdd(r); err != nil {
		t.Fatalf("add route %s: %v", r, err)
	}
}

const worldHost = 1 // the slot of the node's own addresses

// fill writes the rows that the agent would.
func (w *world) fill(t testing.TB) {
	t.Helper()
	n := worldNames()
	w.addPod(t, "a", 2, "linka", "gw")
	w.addPod(t, "b", 3, "linkb", "gwb")
	for _, a := range slices.Concat(families(n["gw"]), families(n["node"])) {
		must(t, w.MarkOwn(a))
	}
	for _, a := range families(n["gw"]) {
		host := DatapathEndpoint{Slot: worldHost, Flags: uint8(DatapathEndpointFlagENDPOINT_HOST)}
		must(t, w.Endpoints.Put(Addr(a), host))
	}
	wire := DatapathWire{Mtu: 1500}
	for i, a := range families(n["node"]) {
		row := DatapathEndpoint{Slot: worldHost, Flags: uint8(DatapathEndpointFlagENDPOINT_HOST)}
		if i == 0 && w.settings.Masquerade4 != 0 {
			wire.Addr4 = Addr(a)
			row.Flags |= uint8(DatapathEndpointFlagENDPOINT_MASQUERADE)
		}
		if i == 1 && w.settings.Masquerade6 != 0 {
			wire.Addr6 = Addr(a)
			row.Flags |= uint8(DatapathEndpointFlagENDPOINT_MASQUERADE)
		}
		must(t, w.Endpoints.Put(Addr(a), row))
	}
	must(t, w.Wires.Put(uint32(w.index["eth0"]), wire))
	if w.settings.Services != 0 {
		wire.Addr4, wire.Addr6 = Addr(n["node"].IP4), Addr(n["node"].IP6)
		must(t, w.Wires.Put(uint32(w.index["eth0"]), wire))
		w.fillServices(t)
	}
	if w.settings.Tunnel != 0 {
		must(t, w.Wires.Put(w.settings.TunnelIfindex, DatapathWire{Mtu: 1450}))
	}
	w.addPrefixes(t)
	w.addPeer(t)
	if w.settings.Policy != 0 {
		w.fillIdentities(t)
	}
	if w.settings.L7 != 0 {
		w.fillProxy(t)
	}
}

func (w *world) addPrefixes(t testing.TB) {
	t.Helper()
	n := worldNames()
	node := map[string]string{"a": "", "node": "", "c": "node2", "d": "node3", "lost": "node3"}
	for name, via := range node {
		for _, a := range families(n[name]) {
			row := DatapathPrefix{Flags: uint32(DatapathPrefixFlagPREFIX_CLUSTER)}
			if via != "" && w.settings.LbDispatch != 0 {
				row.Via = Addr(families(n[via])[slices.Index(families(n[name]), a)])
			}
			if via != "" && w.settings.Tunnel != 0 {
				row.Flags |= uint32(DatapathPrefixFlagPREFIX_TUNNEL)
				row.Via = Addr(families(n[via])[w.settings.Tunnel-1])
			}
			must(t, w.Prefixes.Put(Prefix(around(a)), row))
		}
	}
	if w.settings.Tunnel != 0 {
		w.addTunnelNodes(t)
	}
	w.addEncrypted(t)
}

func (w *world) addPod(t testing.TB, name string, slot uint16, link, gateway string) {
	t.Helper()
	n := worldNames()
	index := uint32(w.index[link])
	row := DatapathEndpoint{Ifindex: index, Slot: slot, PodMac: MAC(n[name].MAC), LinkMac: MAC(n[gateway].MAC)}
	for _, a := range families(n[name]) {
		must(t, w.MarkOwn(a))
		must(t, w.Endpoints.Put(Addr(a), row))
	}
	must(t, w.PodLinks.Put(index, DatapathPodLink{Addr4: Addr(n[name].IP4), Addr6: Addr(n[name].IP6), Endpoint: row}))
}

// forget empties what packets leave behind: a row of a table begins with it.
func (w *world) forget(t testing.TB) {
	t.Helper()
	w.bump(t, 0) // paths can't be taken away, but become stale
	w.unkeep(t)
	w.resetFlood(t)
	must(t, w.PortsBorrowed.Set(uint32(0)))
	must(t, w.EachServiceStat(func(i uint32, _ *DatapathServiceStat) bool {
		must(t, w.ClearServiceStat(i))
		return true
	}))
	for _, m := range []*ebpf.Map{w.Flows, w.Fragments, w.NatEntries, w.NatReplies, w.PortIndexes, w.Affinities,
		w.Probes, w.Names, w.DnsEntries} {
		empty(t, m)
	}
}

// empty deletes all entries of a map.
func empty(t testing.TB, m *ebpf.Map) {
	t.Helper()
	key := make([]byte, m.KeySize())
	for m.NextKey(nil, &key) == nil {
		if err := m.Delete(key); err != nil {
			t.Fatalf("empty %s: %v", m, err)
		}
	}
}

func (w *world) bump(t testing.TB, slot uint16) {
	must(t, (&Epochs{Map: w.Epochs}).Bump(slot))
}

// be16 is a port as the datapath's rows have it.
func be16(p uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], p)
	return binary.NativeEndian.Uint16(b[:])
}
