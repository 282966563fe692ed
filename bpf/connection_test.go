package bpf

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// makePodNamespaces gives pods a and b network namespaces, whose sockets the datapath finds by the endpoints' slots.
func (w *world) makePodNamespaces(t testing.TB) {
	t.Helper()
	w.pods = map[string]int{}
	for name, slot := range map[string]int{"a": slotA, "b": slotB} {
		fd := podNamespace(t, families(worldNames()[name]))
		w.pods[name] = fd
		must(t, netlink.SetNetNsIdByFd(fd, slot))
		must(t, w.PodNetns.Put(uint32(slot), DatapathNetns{Id: int32(slot)}))
	}
}

// podNamespace makes a namespace with addresses, from which everything has a route. The calling thread is back in its
// own at the end.
func podNamespace(t testing.TB, addresses []netip.Addr) (fd int) {
	t.Helper()
	inNewNamespace(t, func() {
		fd = openNamespace(t)
		lo, err := netlink.LinkByName("lo")
		must(t, err)
		must(t, netlink.LinkSetUp(lo))
		for _, a := range addresses {
			must(t, netlink.AddrAdd(lo, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen())),
				Flags: unix.IFA_F_NODAD}))
			everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			if a.Is6() {
				everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			}
			must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(everything)}))
		}
	})
	return fd
}

func inNewNamespace(t testing.TB, fn func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home := openNamespace(t)
	must(t, unix.Unshare(unix.CLONE_NEWNET))
	defer func() { must(t, unix.Setns(home, unix.CLONE_NEWNET)) }()
	fn()
}

func (w *world) inPod(t testing.TB, name string, fn func()) {
	t.Helper()
	must(t, unix.Setns(w.pods[name], unix.CLONE_NEWNET))
	defer func() { must(t, unix.Setns(w.ns, unix.CLONE_NEWNET)) }()
	fn()
}

func socketAddress(a netip.Addr, port uint16) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: int(port)}
	}
	return &unix.SockaddrInet6{Addr: a.As16(), Port: int(port)}
}

// tcpSocket is one that may share its port, as accepted ones share that of the one that listens. It is closed at the
// test's end.
func tcpSocket(t testing.TB, a netip.Addr, port uint16) int {
	t.Helper()
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	must(t, unix.Bind(fd, socketAddress(a, port)))
	return fd
}

// establish makes a socket of the pod's that is connected, without a packet; in repair mode it also goes without one.
func establish(t testing.TB, local netip.Addr, port uint16, remote netip.Addr, remotePort uint16) {
	t.Helper()
	fd := tcpSocket(t, local, port)
	must(t, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_ON))
	must(t, unix.Connect(fd, socketAddress(remote, remotePort)))
}

// knowConnection lets the kernels of the ends, as far as they are pods of this node, know a connection of each family
// that client opened.
func knowConnection(client string, clientPort uint16, server string, serverPort uint16) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		n := worldNames()
		from, to := families(n[client]), families(n[server])
		for i := range from {
			if _, own := w.pods[client]; own {
				w.inPod(t, client, func() { establish(t, from[i], clientPort, to[i], serverPort) })
			}
			if _, own := w.pods[server]; own {
				w.inPod(t, server, func() {
					must(t, unix.Listen(tcpSocket(t, to[i], serverPort), 1))
					establish(t, to[i], serverPort, from[i], clientPort)
				})
			}
		}
	}
}

// rowlessRows are about TCP segments without a row: only what the pods' kernels know of is a connection, and the side
// that opened it counts.
func rowlessRows() []row {
	const tcp = 6
	none := func(in string) step { return step{at: "from_wire eth0", in: in, want: "DROP_NO_CONNECTION", out: "="} }
	rows := []row{
		{name: "a segment of no connection, whatever its ports", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > b | tcp 80 > 40000 A | "x"`,
				want: "DROP_NO_CONNECTION", out: "=", before: isolates(slotB, ingress)},
			none(`eth router > node | ip world > b | tcp 40000 > 80 A | "x"`),
			none(`eth router > node | ip world > b | tcp 80 > 40000 R`),
			none(`eth router > node | ip world > b | tcp 80 > 40000 FPU`),
			none(`eth router > node | ip world > b | tcp 80 > 40000 SA`),
			{at: "from_wire eth0", in: `eth router > node | ip world > b | tcp 80 > 40000 S`,
				want: "DROP_POLICY_NO_RULE", out: "="},
			{at: "from_wire eth0", in: `eth router > node | ip world > b | tcp 80 > 40000 A`,
				want: "DROP_NO_CONNECTION", out: "=", before: isolates(slotB, ingress, allows("", tcp, 40000))},
		}},
		{name: "a pod's segment of no connection", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > c | tcp 80 > 40000 A | "x"`, want: "DROP_NO_CONNECTION",
				out: "=", before: isolates(slotA, egress)},
			{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 80 > 40000 A | "x"`, want: "DROP_NO_CONNECTION",
				out: "="},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 80 > 40000 A | "x"`, want: "DROP_NO_CONNECTION",
				out: "="},
		}},
		{name: "a connection from before any policy, which names its server", steps: []step{
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 80 > 40000 A`, want: "FORWARD_POD",
				before: all(knowConnection("a", 40000, "b", 80), isolates(slotB, ingress, allows("a", tcp, 80)),
					isolates(slotB, egress))},
			{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 40000 > 80 A`, want: "FORWARD_POD"},
		}},
		{name: "the same, forbidden", steps: []step{
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 80 > 40000 A seq 1 ack 2`,
				want:   "DROP_POLICY_NO_RULE REPLY_RESET",
				before: all(knowConnection("a", 40000, "b", 80), isolates(slotB, ingress))},
			{at: "to_pod linkb", in: `eth gwb > b | ip a > b | tcp 40000 > 80 R seq 2`, want: "", out: "=",
				after: flowsAre(0)},
			{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 40000 > 80 A seq 1 ack 2`,
				want: "DROP_POLICY_NO_RULE REPLY_RESET"},
		}},
	}
	return append(rows, connectionSideRows()...)
}

func connectionSideRows() []row {
	const tcp = 6
	return []row{
		{name: "a connection that the isolated pod opened, from a low port to a high one", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > b | tcp 40000 > 80 A`, want: "FORWARD_POD",
				before: all(knowConnection("b", 80, "world", 40000), isolates(slotB, ingress))},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > world | tcp 80 > 40000 A`, want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: `eth router > node | ip world > b | tcp 40001 > 80 A`,
				want: "DROP_NO_CONNECTION", out: "="},
		}},
		{name: "a connection that the isolated pod accepted", steps: []step{
			{at: "from_wire eth0", in: `eth node2 > node | ip c > b | tcp 40000 > 80 A`, want: "FORWARD_POD",
				before: all(knowConnection("c", 40000, "b", 80), isolates(slotB, ingress, allows("c", tcp, 80)))},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > b | tcp 40000 > 80 A seq 1 ack 2`,
				want: "DROP_POLICY_NO_RULE REPLY_RESET", before: isolates(slotB, ingress)},
		}},
		{name: "a pod that may not begin anything answers what it accepted", steps: []step{
			{at: "from_pod linkb", in: `eth b > gwb | ip b > c | tcp 80 > 40000 A`, want: "FORWARD_RESOLVE",
				before: all(knowConnection("c", 40000, "b", 80), isolates(slotB, egress))},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > c | tcp 81 > 40000 A`, want: "DROP_NO_CONNECTION",
				out: "="},
		}},
		{name: "a pod that may change what its kernel says goes on once its peer has spoken", steps: []step{
			{at: "from_pod linkb", in: `eth b > gwb | ip b > c | tcp 80 > 40000 A`, want: "DROP_NO_CONNECTION",
				out:    "=",
				before: all(knowConnection("c", 40000, "b", 80), isolates(slotB, egress), administers(slotB, true))},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > b | tcp 40000 > 80 A`, want: "FORWARD_POD"},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > c | tcp 80 > 40000 A`, want: "FORWARD_WIRE",
				after: administers(slotB, false)},
		}},
	}
}

// administers says whether a pod may change its network namespace.
func administers(slot uint16, may bool) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		row := DatapathNetns{Id: int32(slot)}
		if may {
			row.Forgeable = 1
		}
		must(t, w.PodNetns.Put(uint32(slot), row))
	}
}
