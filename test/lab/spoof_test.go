package labtest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/test/packet"
)

// forgery is a frame that a pod must not send, and under which names it may be dropped.
type forgery struct {
	name   string
	frame  string
	as     []bpf.DatapathOutcome
	family int // 0: both
}

// forgeries are what a1 sends. stranger is no pod, b is a pod beside it, a2 one on the other node.
func forgeries() []forgery {
	type o = []bpf.DatapathOutcome
	address, mac := o{bpf.DatapathOutcomeDROP_SPOOFED_ADDRESS}, o{bpf.DatapathOutcomeDROP_SPOOFED_MAC}
	arp, nd := o{bpf.DatapathOutcomeDROP_SPOOFED_ARP}, o{bpf.DatapathOutcomeDROP_SPOOFED_ND}
	arpTarget, ndTarget := o{bpf.DatapathOutcomeDROP_ARP_TARGET}, o{bpf.DatapathOutcomeDROP_ND_TARGET}
	anyARP, ndType := append(slices.Clone(arp), arpTarget...), o{bpf.DatapathOutcomeDROP_ND_TYPE}
	multicast, martian := o{bpf.DatapathOutcomeDROP_MULTICAST}, o{bpf.DatapathOutcomeDROP_MARTIAN}
	return []forgery{
		{"address of no pod", `eth a > gw | ip stranger > b | udp 1 > 2 | "x"`, address, 0},
		{"address of a pod beside", `eth a > gw | ip b > a2 | udp 1 > 2 | "x"`, address, 0},
		{"address of a pod elsewhere", `eth a > gw | ip a2 > b | udp 1 > 2 | "x"`, address, 0},
		{"address of the gateway", `eth a > gw | ip gw > b | udp 1 > 2 | "x"`, address, 0},
		{"address of the node", `eth a > gw | ip node > a2 | udp 1 > 2 | "x"`, address, 0},
		{"address of no pod to the host", `eth a > gw | ip stranger > node | udp 1 > 2 | "x"`, address, 0},
		{"MAC of no pod", `eth stranger > gw | ip a > b | udp 1 > 2 | "x"`, mac, 0},
		{"MAC of a pod beside", `eth b > gw | ip a > a2 | udp 1 > 2 | "x"`, mac, 0},
		{"ARP for a pod beside", `eth a > broadcast | arp who-has b tell a`, arpTarget, 4},
		{"ARP with an address of another", `eth a > broadcast | arp who-has gw tell b`, arp, 4},
		{"ARP with a MAC of another", `eth a > broadcast | arp who-has gw tell a sha stranger`, arp, 4},
		{"gratuitous ARP for the gateway", `eth a > broadcast | arp who-has gw tell gw sha a`, arp, 4},
		{"gratuitous ARP reply for the gateway", `eth a > broadcast | arp gw is-at a`, anyARP, 4},
		{"ARP reply for a pod beside", `eth a > gw | arp b is-at a to gw`, anyARP, 4},
		{"ND for a pod beside", `eth a > solicited:b | ip6 a > solicited:b ttl 255 | nd solicit b lladdr a`,
			ndTarget, 6},
		{"ND with an address of another",
			`eth a > solicited:gw | ip6 b > solicited:gw ttl 255 | nd solicit gw lladdr a`, nd, 6},
		{"ND with a MAC of another",
			`eth a > solicited:gw | ip6 a > solicited:gw ttl 255 | nd solicit gw lladdr stranger`, nd, 6},
		{"ND from off the link", `eth a > solicited:gw | ip6 a > solicited:gw ttl 64 | nd solicit gw lladdr a`, nd, 6},
		{"ND advertisement for the gateway",
			`eth a > all-nodes | ip6 gw > all-nodes ttl 255 | nd advert gw router override lladdr a`, nd, 6},
		{"ND advertisement for itself", `eth a > gw | ip6 a > gw ttl 255 | nd advert a override lladdr a`, nd, 6},
		{"router solicitation", `eth a > all-routers | ip6 a > all-routers ttl 255 | nd router-solicit`, ndType, 6},
		{"router advertisement", `eth a > all-nodes | ip6 a > all-nodes ttl 255 | nd router-advert lladdr a`,
			ndType, 6},
		{"ND advertisement behind options",
			`eth a > gw | ip6 a > gw ttl 255 | dstopts | nd advert a override lladdr a`, ndType, 6},
		{"ND advertisement in a fragment",
			`eth a > gw | ip6 a > gw ttl 255 | frag 7 mf | nd advert a override lladdr a`, ndType, 6},
		{"redirect", `eth a > gw | ip6 gw > b ttl 255 | nd redirect a for a2`, ndType, 6},
		{"multicast", `eth a > group | ip a > group | udp 5353 > 5353 | "x"`, multicast, 0},
		{"broadcast", `eth a > broadcast | ip4 a > 255.255.255.255 | udp 68 > 67 | "x"`, multicast, 4},
		{"loopback", `eth a > gw | ip a > loop | udp 1 > 2 | "x"`, martian, 0},
		{"VLAN", `eth a > gw | vlan 5 | ip a > b | udp 1 > 2 | "x"`, o{bpf.DatapathOutcomeDROP_VLAN}, 0},
		{"neither IP nor ARP", `eth a > gw type 0x88cc | "x"`, o{bpf.DatapathOutcomeDROP_UNSUPPORTED_L2}, 4},
	}
}

// copies are how often each is sent: far more than what a pod's own kernel says by itself.
const copies = 40

// TestSpoofing sends forged frames out of a pod: each is dropped under its name, and no other pod sees any of it.
//
//	┌─ node1 ───────────────┐  ┌─ node2 ───┐
//	│ a1 forges    b1 hears │  │  a2 hears │
//	└──────┬────────────────┘  └────┬──────┘
//	═══════╧════════════════════════╧═══════
func TestSpoofing(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: m})
			names := c.names()
			ears := []*ear{c.listenAll("b1"), c.listenAll("a2")}
			for _, f := range c.stack.families {
				for _, row := range forgeries() {
					if row.family == 0 || row.family == f {
						c.forge(row, f, names)
					}
				}
			}
			time.Sleep(patience(100 * time.Millisecond))
			for _, e := range ears {
				for _, frame := range e.heard() {
					t.Errorf("%s hears %s", e.name, packet.Format(frame, names))
				}
			}
			for _, f := range c.stack.families {
				c.try(way{"a1", "b1", "a1"}, f)
				c.try(way{"a1", "a2", "a1"}, f)
			}
		})
	}
}

// forge sends one frame many times and looks under which name it is counted.
func (c *cluster) forge(row forgery, family int, names packet.Names) {
	c.t.Helper()
	frame, err := packet.Parse(row.frame, packet.Family(family), names)
	if err != nil {
		c.t.Fatalf("%s: %v", row.name, err)
	}
	count := func() (n uint64) {
		for _, o := range row.as {
			n += c.outcome("node1", o)
		}
		return n
	}
	before := count()
	if err := c.sendFrame("a1", frame, copies); err != nil {
		c.t.Fatal(err)
	}
	var got uint64
	for end := time.Now().Add(patience(time.Second)); time.Now().Before(end) &&
		got < copies; time.Sleep(time.Millisecond) {
		got = count() - before
	}
	if got < copies || got > copies+5 {
		c.t.Errorf("IPv%d %s: %d of %d frames are counted under %v", family, row.name, got, copies, row.as)
	}
}

// names are those that the frames use.
func (c *cluster) names() packet.Names {
	c.t.Helper()
	m := c.pinnedMap("node1", "endpoints")
	defer m.Close()
	of := func(e end) (row bpf.DatapathEndpoint) {
		if err := m.Lookup(bpf.Addr(e.addr(4)), &row); err != nil {
			c.t.Fatal(err)
		}
		return row
	}
	a, b := c.end("a1"), c.end("b1")
	name := func(mac [6]byte, ip4, ip6 netip.Addr) packet.Name {
		return packet.Name{MAC: net.HardwareAddr(mac[:]), IP4: ip4, IP6: ip6}
	}
	ip := netip.MustParseAddr
	return packet.Names{
		"a":        name(of(a).PodMac.B, a.addr(4), a.addr(6)),
		"b":        name(of(b).PodMac.B, b.addr(4), b.addr(6)),
		"gw":       name(of(a).LinkMac.B, gateway(1, 4), gateway(1, 6)),
		"a2":       {IP4: c.end("a2").addr(4), IP6: c.end("a2").addr(6)},
		"node":     {IP4: nodeAddr(1, 4), IP6: nodeAddr(1, 6)},
		"stranger": name([6]byte{2, 0x66, 0, 0, 0, 1}, ip("172.16.9.9"), ip("fd00:dead::9")),
		"group":    name([6]byte{1, 0, 0x5e, 0, 0, 0xfb}, ip("224.0.0.251"), ip("ff02::fb")),
		"loop":     {IP4: ip("127.0.0.1"), IP6: ip("::1")},
	}
}

// rawSocket opens an AF_PACKET socket on a pod's device that receives frames of the protocol; 0: none.
func (c *cluster) rawSocket(pod, device string, protocol uint16) (fd int, err error) {
	err = c.end(pod).Do(func() error {
		eth0, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8, Ifindex: eth0.Index})
	})
	if err != nil {
		return -1, fmt.Errorf("open packet socket in %s: %w", pod, err)
	}
	return fd, nil
}

func (c *cluster) sendFrame(pod string, frame []byte, n int) error {
	return c.sendRaw(pod, "eth0", frame, n)
}

func (c *cluster) sendRaw(pod, device string, frame []byte, n int) error {
	fd, err := c.rawSocket(pod, device, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for range n {
		// A netkit device reports that it drops a frame.
		if _, err := unix.Write(fd, frame); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("send a frame from %s: %w", pod, err)
		}
	}
	return nil
}

// ear is a socket that gets every frame which comes in to a pod.
type ear struct {
	name string
	fd   int
}

func (c *cluster) listenAll(pod string) *ear {
	c.t.Helper()
	fd, err := c.rawSocket(pod, "eth0", unix.ETH_P_ALL)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { unix.Close(fd) })
	return &ear{pod, fd}
}

// heard is what came in since the last call. What the pod itself sends is not of interest.
func (e *ear) heard() (frames [][]byte) {
	for {
		buf := make([]byte, 2048)
		n, from, err := unix.Recvfrom(e.fd, buf, 0)
		if err != nil {
			return frames
		}
		if link, ok := from.(*unix.SockaddrLinklayer); ok && link.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		// The node's own kernel says on each link which multicast groups it is in (MLDv2, RFC 3810).
		if n >= 6 && bytes.Equal(buf[:6], []byte{0x33, 0x33, 0, 0, 0, 0x16}) {
			continue
		}
		frames = append(frames, buf[:n])
	}
}
