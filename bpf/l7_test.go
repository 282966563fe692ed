package bpf

import (
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const (
	tcp = 6
	udp = 17
)

func redirecting(s *Settings) { s.Policy, s.L7 = 1, 1 }

func openWithoutProxy(s *Settings) { s.L7Open = 1 }

// fillProxy writes the proxy's device and socket.
func (w *world) fillProxy(t testing.TB) {
	t.Helper()
	n := worldNames()
	index := uint32(w.index["proxy0"])
	must(t, w.ProxyDevice.Put(uint32(0), DatapathProxyDevices{StreamIfindex: index, DatagramIfindex: index,
		StreamMac: MAC(n["proxy"].MAC), LinkMac: MAC(n["gwp"].MAC)}))
	l := plainListener(t)
	t.Cleanup(func() { l.Close() })
	f, err := l.(*net.TCPListener).File()
	must(t, err)
	t.Cleanup(func() { f.Close() })
	w.listener = uint64(f.Fd())
	proxyRuns(t, w)
}

// plainListener is a listening socket of TCP; Go's own are of MPTCP, which maps of sockets do not take.
func plainListener(t testing.TB) net.Listener {
	t.Helper()
	var c net.ListenConfig
	c.SetMultipathTCP(false)
	l, err := c.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	return l
}

func proxyRuns(t testing.TB, w *world) {
	t.Helper()
	must(t, w.ProxySockets.Put(uint32(DatapathProxySocketPROXY_LISTENER), w.listener))
}

func proxyEnds(t testing.TB, w *world) {
	t.Helper()
	if err := w.ProxySockets.Delete(uint32(DatapathProxySocketPROXY_LISTENER)); err != nil {
		t.Fatal(err)
	}
}

// proxies is a row of a set that allows what passes through the proxy.
func proxies(peer string, proto uint8, port uint16) said {
	s := allows(peer, proto, port)
	s.proxy = 1
	return s
}

// byName gives the endpoint's policies rules by name: the selector has what the set says of the peer "named".
func byName(slot uint16) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		var e DatapathEndpointPolicy
		must(t, w.Policies.Lookup(uint32(slot), &e))
		e.L7 |= uint8(DatapathPolicyL7POLICY_NAMES)
		must(t, w.Policies.Put(uint32(slot), e))
		must(t, w.Peers.Put(selectorAddr(namedSelector), identities()["named"]))
		w.bump(t, slot)
	}
}

const namedSelector = 7

// selectorAddr is the address that stands for a selector of names, ff00::N.
func selectorAddr(n uint32) (a DatapathAddr) {
	b := [16]byte{0: 0xff}
	binary.BigEndian.PutUint32(b[12:], n)
	a.B = b
	return a
}

// identified gives the addresses of a name an identity.
func identified(name string, number uint32) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		for _, a := range families(worldNames()[name]) {
			must(t, w.Peers.Put(Addr(a), number))
		}
		must(t, (&Epochs{Map: w.Epochs}).Move())
	}
}

// resolves gives the endpoint addresses for a name that the selectors match; seconds is how long they are valid.
func resolves(slot uint16, name string, seconds int, selectors ...uint32) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		var now unix.Timespec
		must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
		n := DatapathName{Expires: uint64(now.Nano() + int64(seconds)*int64(time.Second))}
		copy(n.Selector[:], selectors)
		for _, a := range families(worldNames()[name]) {
			must(t, w.Names.Put(DatapathNameKey{Addr: Addr(a), Slot: uint32(slot)}, n))
		}
	}
}

func l7Tables() []table {
	return []table{
		{name: "L7", settings: settingsOf(redirecting, longTimes), rows: opened(l7Rows(), l7DownRows(), l7ChangeRows(),
			nameRows())},
		{name: "L7, open without the proxy", settings: settingsOf(redirecting, openWithoutProxy, longTimes),
			rows: opened(l7OpenRows())},
		{name: "L7, masquerading", settings: settingsOf(redirecting, masquerading, longTimes),
			rows: opened(l7Rows(), l7WorldRows())},
		{name: "L7, Services", settings: settingsOf(redirecting, servicing, longTimes), rows: opened(l7Rows())},
		{name: "L7, legacy routing", settings: settingsOf(redirecting, legacy, longTimes),
			rows: opened(l7LegacyRows())},
		{name: "L7, DNS", settings: settingsOf(redirecting, cachingDNS, longTimes),
			rows: opened(dnsRows(), dnsQueryRows(), dnsAnswerRows(), dnsChangeRows())},
		{name: "L7, DNS, masquerading", settings: settingsOf(redirecting, cachingDNS, masquerading, longTimes),
			rows: opened(dnsRows(), dnsWorldRows())},
	}
}

// l7Rows are the two connections of a flow that passes through the proxy: that of the client ends at the proxy, and the
// proxy opens another one to the server from the client's address.
func l7Rows() []row {
	fromA := func(l4 string) string { return `eth a > gw | ip a > b | tcp ` + l4 }
	fromB := func(l4 string) string { return `eth b > gwb | ip b > a | tcp ` + l4 }
	fromProxy := func(l4 string) string { return `eth proxy > gwp | ` + l4 }
	toProxy := func(ends, l4 string) string { return `eth gwp > proxy | ip ` + ends + ` ttl 63 | tcp ` + l4 }
	return []row{
		{name: "both connections", steps: []step{
			{at: "from_pod linka", in: fromA("40000 > 80 S"), want: "FORWARD_PROXY",
				out:    toProxy("a > b", "40000 > 80 S"),
				before: isolates(slotB, ingress, proxies("a", tcp, 80), allows("a", tcp, 81))},
			{at: "from_proxy proxy0", in: fromProxy(`ip b > a | tcp 80 > 40000 SA`), want: "FORWARD_POD",
				out: `eth gw > a | ip b > a ttl 63 | tcp 80 > 40000 SA`},
			{at: "from_pod linka", in: fromA("40000 > 80 A"), want: "FORWARD_PROXY"},
			{at: "from_proxy proxy0", in: fromProxy(`ip a > b | tcp 40000 > 80 S`), want: "FORWARD_POD",
				out: `eth gwb > b | ip a > b ttl 63 | tcp 40000 > 80 S`},
			{at: "from_pod linkb", in: fromB("80 > 40000 SA"), want: "FORWARD_PROXY",
				out: toProxy("b > a", "80 > 40000 SA")},
			{at: "from_pod linkb", in: fromB("80 > 40000 A"), want: "FORWARD_PROXY"},
			{at: "from_pod linka", in: fromA("40000 > 80 F"), want: "FORWARD_PROXY"},
			{at: "from_pod linka", in: fromA("40001 > 81 S"), want: "FORWARD_POD"},
			{at: "from_pod linkb", in: fromB("81 > 40001 SA"), want: "FORWARD_POD"},
			{at: "from_pod linka", in: fromA("40002 > 82 S"), want: "DROP_POLICY_NO_RULE", out: "="},
		}},
		{name: "a client on another node", steps: []step{
			{at: "from_wire eth0", in: `eth node2 > node | ip c > b | tcp 40000 > 80 S`, want: "FORWARD_PROXY",
				before: isolates(slotB, ingress, proxies("c", tcp, 80))},
			{at: "from_proxy proxy0", in: fromProxy(`ip b > c | tcp 80 > 40000 SA`), want: "FORWARD_RESOLVE"},
			{at: "from_proxy proxy0", in: fromProxy(`ip c > b | tcp 40000 > 80 S`), want: "FORWARD_POD"},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > c | tcp 80 > 40000 SA`, want: "FORWARD_PROXY"},
		}},
		{name: "a server on another node", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > c | tcp 40000 > 80 S`, want: "FORWARD_PROXY",
				before: isolates(slotA, egress, proxies("c", tcp, 80))},
			{at: "from_proxy proxy0", in: fromProxy(`ip a > c | tcp 40000 > 80 S`), want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > a | tcp 80 > 40000 SA`, want: "FORWARD_PROXY"},
			{at: "from_proxy proxy0", in: fromProxy(`ip c > a | tcp 80 > 40000 SA`), want: "FORWARD_POD"},
		}},
		{name: "errors about a connection go to the end that has it", steps: []step{
			{at: "from_pod linka", in: fromA("40000 > 80 S"), want: "FORWARD_PROXY",
				before: isolates(slotB, ingress, proxies("a", tcp, 80))},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | icmp unreachable port | ip a > b | tcp 40000 > 80 S`,
				want: "FORWARD_PROXY"},
		}},
		{name: "what the proxy must not send", steps: []step{
			{at: "from_proxy proxy0", in: fromProxy(`ip a > b | tcp 40000 > 80 S`),
				want: "DROP_POLICY_NO_RULE REPLY_RESET", before: isolates(slotB, ingress, proxies("c", tcp, 80))},
		}},
	}
}

// l7ChangeRows are about policies that change under a connection.
func l7ChangeRows() []row {
	fromA := func(l4 string) string { return `eth a > gw | ip a > b | tcp ` + l4 }
	through := isolates(slotB, ingress, proxies("a", tcp, 80))
	return []row{
		{name: "denied: neither end gets anything any more", steps: []step{
			{at: "from_pod linka", in: fromA("40000 > 80 S"), want: "FORWARD_PROXY", before: through},
			{at: "from_proxy proxy0", in: `eth proxy > gwp | ip b > a | tcp 80 > 40000 SA`, want: "FORWARD_POD"},
			{at: "from_proxy proxy0", in: `eth proxy > gwp | ip b > a | tcp 80 > 40000 A`,
				want: "DROP_POLICY_NO_RULE REPLY_RESET", before: isolates(slotB, ingress)},
			{at: "from_pod linka", in: fromA("40000 > 80 A"), want: "DROP_POLICY_NO_RULE REPLY_RESET"},
		}},
		{name: "allowed without the proxy: a connection stays there", steps: []step{
			{at: "from_pod linka", in: fromA("40000 > 80 S"), want: "FORWARD_PROXY", before: through},
			{at: "from_pod linka", in: fromA("40000 > 80 A"), want: "FORWARD_PROXY",
				before: isolates(slotB, ingress, allows("a", tcp, 80))},
			{at: "from_pod linka", in: fromA("40001 > 80 S"), want: "FORWARD_POD"},
		}},
		{name: "through the proxy from now on: the connection is the proxy's to reset", steps: []step{
			{at: "from_pod linka", in: fromA("40000 > 80 S"), want: "FORWARD_POD",
				before: isolates(slotB, ingress, allows("a", tcp, 80))},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 80 > 40000 SA`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: fromA("40000 > 80 A"), want: "FORWARD_PROXY", before: through},
		}},
	}
}

func l7DownRows() []row {
	const in = `eth a > gw | ip a > b | tcp 40000 > 80 S`
	return []row{{name: "without the proxy", steps: []step{
		{at: "from_pod linka", in: in, want: "DROP_PROXY_DOWN", out: "=",
			before: all(proxyEnds, isolates(slotB, ingress, proxies("a", tcp, 80))), after: proxyRuns},
		{at: "from_pod linka", in: in, want: "FORWARD_PROXY"},
	}}}
}

func l7OpenRows() []row {
	const in = `eth a > gw | ip a > b | tcp 40000 > `
	return []row{{name: "without the proxy, new flows pass", steps: []step{
		{at: "from_pod linka", in: in + "80 S", want: "FORWARD_POD",
			before: all(proxyEnds, isolates(slotB, ingress, proxies("a", tcp, 80))), after: proxyRuns},
		{at: "from_pod linka", in: in + "81 S", want: "DROP_POLICY_NO_RULE", out: "="},
	}}}
}

// l7WorldRows are about the proxy's connections to the world, which are masqueraded as the pod's would be.
func l7WorldRows() []row {
	return []row{{name: "masqueraded behind the proxy", steps: []step{
		{at: "from_pod linka", in: `eth a > gw | ip a > world | tcp 40000 > 80 S`, want: "FORWARD_PROXY",
			out: `eth gwp > proxy | ip a > world ttl 63 | tcp 40000 > 80 S`, before: isolates(slotA, egress,
				proxies("", tcp, 80), allows("", tcp, 81))},
		{at: "from_proxy proxy0", in: `eth proxy > gwp | ip a > world | tcp 40000 > 80 S`, want: "FORWARD_RESOLVE",
			out: `eth node > router | ip node > world ttl 63 | tcp 50000 > 80 S`},
		{at: "from_wire eth0", in: `eth router > node | ip world > node | tcp 80 > 50000 SA`, want: "FORWARD_PROXY",
			out: `eth gwp > proxy | ip world > a ttl 63 | tcp 80 > 40000 SA`},
		{at: "from_proxy proxy0", in: `eth proxy > gwp | ip world > a | tcp 80 > 40000 SA`, want: "FORWARD_POD",
			out: `eth gw > a | ip world > a ttl 63 | tcp 80 > 40000 SA`},
		{at: "from_pod linka", in: `eth a > gw | ip a > world | tcp 40000 > 80 A`, want: "FORWARD_PROXY"},
		{at: "from_pod linka", in: `eth a > gw | ip a > world2 | tcp 40000 > 81 S`, want: "FORWARD_RESOLVE"},
	}}}
}

func l7LegacyRows() []row {
	return []row{{name: "the stack never sees the client's connection", steps: []step{
		{at: "from_wire eth0", in: `eth node2 > node | ip c > b | tcp 40000 > 80 S`, want: "FORWARD_PROXY",
			before: isolates(slotB, ingress, proxies("c", tcp, 80))},
		{at: "from_proxy proxy0", in: `eth proxy > gwp | ip c > b | tcp 40000 > 80 S`, want: "FORWARD_POD"},
		{at: "from_pod linkb", in: `eth b > gwb | ip b > c | tcp 80 > 40000 SA`, want: "FORWARD_PROXY"},
		{at: "from_proxy proxy0", in: `eth proxy > gwp | ip b > c | tcp 80 > 40000 SA`, want: "FORWARD_STACK",
			out: "="},
	}}}
}

// nameRows are about addresses that a pod got for names.
func nameRows() []row {
	toWorld := func(l4 string) string { return `eth a > gw | ip a > world | ` + l4 }
	rules := all(isolates(slotA, egress, allows("named", tcp, 443), proxies("named", tcp, 80), allows("c", udp, 53),
		said{"", tcp, 25, 16, DatapathPolicyActionPOLICY_DENY, 0}), byName(slotA))
	return []row{
		{name: "allowed by name", steps: []step{
			{at: "from_pod linka", in: toWorld(`tcp 40000 > 443 S`), want: "DROP_POLICY_NO_RULE", before: rules},
			{at: "from_pod linka", in: toWorld(`tcp 40000 > 443 S`), want: "FORWARD_WIRE",
				before: resolves(slotA, "world", 60, namedSelector)},
			{at: "from_pod linka", in: toWorld(`tcp 40001 > 80 S`), want: "FORWARD_PROXY"},
			{at: "from_pod linka", in: toWorld(`tcp 40002 > 444 S`), want: "DROP_POLICY_NO_RULE"},
			{at: "from_pod linka", in: `eth a > gw | ip a > world2 | tcp 40000 > 443 S`, want: "DROP_POLICY_NO_RULE"},
		}},
		{name: "of another pod, or of another selector", steps: []step{
			{at: "from_pod linka", in: toWorld(`tcp 40000 > 443 S`), want: "DROP_POLICY_NO_RULE",
				before: all(rules, resolves(slotB, "world", 60, namedSelector))},
			{at: "from_pod linka", in: toWorld(`tcp 40000 > 443 S`), want: "DROP_POLICY_NO_RULE",
				before: resolves(slotA, "world", 60, namedSelector+1)},
			{at: "from_pod linka", in: toWorld(`tcp 40000 > 443 S`), want: "FORWARD_WIRE",
				before: resolves(slotA, "world", 60, namedSelector+1, namedSelector)},
		}},
		{name: "expired: connections stay, none begins", steps: []step{
			{at: "from_pod linka", in: toWorld(`tcp 40000 > 443 S`), want: "FORWARD_RESOLVE",
				before: all(rules, resolves(slotA, "world", 60, namedSelector))},
			{at: "from_pod linka", in: toWorld(`tcp 40000 > 443 A`), want: "FORWARD_RESOLVE",
				before: all(resolves(slotA, "world", -2, namedSelector), rules)},
			{at: "from_pod linka", in: toWorld(`tcp 40001 > 443 S`), want: "DROP_POLICY_NO_RULE"},
		}},
		{name: "not to addresses in the cluster: pods, nodes, and those that are in CIDRs, too", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > c | tcp 40000 > 443 S`, want: "DROP_POLICY_NO_RULE",
				before: all(rules, resolves(slotA, "c", 60, namedSelector))},
			{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 40000 > 443 S`, want: "DROP_POLICY_NO_RULE",
				before: resolves(slotA, "b", 60, namedSelector)},
			{at: "from_pod linka", in: `eth a > gw | ip a > node | tcp 40000 > 443 S`, want: "DROP_POLICY_NO_RULE",
				before: resolves(slotA, "node", 60, namedSelector)},
			{at: "from_pod linka", in: toWorld(`tcp 40000 > 443 S`), want: "DROP_POLICY_NO_RULE",
				before: all(resolves(slotA, "world", 60, namedSelector), identified("world", 3<<30+7))},
			{at: "from_pod linka", in: toWorld(`tcp 40000 > 443 S`), want: "FORWARD_WIRE",
				before: identified("world", 1<<31+7)},
		}},
		{name: "a rule that denies comes first", steps: []step{
			{at: "from_pod linka", in: toWorld(`tcp 40000 > 25 S`), want: "DROP_POLICY_DENIED",
				before: all(rules, resolves(slotA, "world", 60, namedSelector))},
		}},
		{name: "DNS passes through the proxy", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > c | udp 40000 > 53`, want: "FORWARD_PROXY", before: rules},
			{at: "from_proxy proxy0", in: `eth proxy > gwp | ip a > c | udp 40000 > 53`, want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > a | udp 53 > 40000`, want: "FORWARD_PROXY"},
			{at: "from_proxy proxy0", in: `eth proxy > gwp | ip c > a | udp 53 > 40000`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: `eth a > gw | ip a > c | udp 40000 > 53`, want: "DROP_PROXY_DOWN",
				before: proxyEnds, after: proxyRuns},
		}},
	}
}

// The proxy's map of sockets forgets a socket that closes, so that flows are not sent to a proxy that has ended.
func TestProxySocketCloses(t *testing.T) {
	w := newWorld(t, settingsOf(redirecting), onlyPrograms("from_pod"))
	l := plainListener(t)
	f, err := l.(*net.TCPListener).File()
	must(t, err)
	must(t, w.ProxySockets.Put(uint32(DatapathProxySocketPROXY_LISTENER), uint64(f.Fd())))
	must(t, f.Close())
	must(t, l.Close())
	var cookie uint64
	if err := w.ProxySockets.Lookup(uint32(DatapathProxySocketPROXY_LISTENER), &cookie); err != ebpf.ErrKeyNotExist &&
		err == nil {
		t.Errorf("the closed socket is still there: %d", cookie)
	}
}
