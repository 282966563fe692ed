package oracle

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"

	"myelin/test/packet"
)

// Generator makes attempts up. What is random comes from R: the same R makes the same attempts of the same network.
type Generator struct {
	R     *rand.Rand
	Model *Model
	// Senders are places that can send frames of any kind.
	Senders []*Place
	// MACs are the hardware addresses of places; "gw-POD" is what a pod has for its gateway.
	MACs map[string]net.HardwareAddr
	// Services are addresses that lead to pods.
	Services []netip.AddrPort
	// Open are TCP connections to pods, which the option of direct server return must not harm.
	Open []Flow

	n      uint64
	recent []Flow
}

// draft is an attempt that is being made.
type draft struct {
	*Attempt
	to *Place
	f  int
	// ip is the packet, of which packets are the parts that are sent.
	ip      []byte
	packets [][]byte
	pads    [][]byte // behind the end of packets
	tags    string   // VLAN tags
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// odds is true in so many of 100 cases.
func (g *Generator) odds(percent int) bool { return g.R.IntN(100) < percent }

// Next makes the next attempt.
func (g *Generator) Next() *Attempt {
	for {
		g.n++
		d := &draft{Attempt: &Attempt{N: g.n}}
		if g.make(d) {
			return d.Attempt
		}
	}
}

func (g *Generator) make(d *draft) bool {
	d.From, d.to = pick(g.R, g.Senders...), pick(g.R, g.Model.Places...)
	if len(g.Open) > 0 && len(g.Services) > 0 && g.odds(4) {
		return g.direct(d)
	}
	if d.From == d.to || d.From.Node != "" && !d.From.Pod && d.From.Node == d.to.Node {
		return false
	}
	d.f = pick(g.R, 4, 6)
	src, dst := g.address(d.From, d.f), g.address(d.to, d.f)
	if !src.IsValid() || !dst.IsValid() {
		return false
	}
	own := src
	if g.odds(12) {
		src = g.otherSource(d)
	}
	if !d.to.Pod && d.to.Node != "" && !d.From.Pod && g.odds(15) {
		dst = g.unusual(d.f, d.to)
	}
	if !g.write(d, src, dst, own) {
		return false
	}
	g.disguise(d)
	if len(d.packets) == 0 {
		d.packets = [][]byte{d.ip}
	}
	g.frames(d)
	g.remember(d)
	return true
}

// Remember keeps a flow that a kernel opened, for packets of the same flow.
func (g *Generator) Remember(f Flow) { g.recent = append(g.recent[max(0, len(g.recent)-63):], f) }

// remember keeps flows for answers and quotes.
func (g *Generator) remember(d *draft) {
	if len(d.Real) > 0 && d.Begins {
		g.Remember(d.Real[0])
	}
}

func (g *Generator) address(p *Place, f int) netip.Addr {
	var list []netip.Addr
	for _, a := range p.Addrs {
		if a.Is4() == (f == 4) && !a.IsLinkLocalUnicast() {
			list = append(list, a)
		}
	}
	if len(list) == 0 {
		return netip.Addr{}
	}
	return pick(g.R, list...)
}

// otherSource is an address that is not the sender's.
func (g *Generator) otherSource(d *draft) netip.Addr {
	if g.odds(20) {
		for _, node := range slices.Sorted(maps.Keys(g.Model.Gateways)) {
			for _, a := range g.Model.Gateways[node] {
				if a.Is4() == (d.f == 4) && g.odds(50) {
					return a
				}
			}
		}
	}
	if g.odds(20) {
		if d.f == 4 {
			return netip.MustParseAddr(pick(g.R, "203.0.113.1", "8.8.8.8", "169.254.1.1"))
		}
		return netip.MustParseAddr(pick(g.R, "2001:db8:1::1", "2600::8", "fe80::99"))
	}
	if a := g.address(pick(g.R, g.Model.Places...), d.f); a.IsValid() {
		return a
	}
	return g.address(d.From, d.f)
}

// unusual are destinations that a node takes without their being its addresses in the cluster.
func (g *Generator) unusual(f int, to *Place) netip.Addr {
	list := []string{"255.255.255.255", "192.168.64.255", "224.0.0.1"}
	if f == 6 {
		list = []string{"ff02::1", "ff01::1", "ff02::2"}
		for _, a := range to.Addrs {
			if a.IsLinkLocalUnicast() {
				list = append(list, a.String(), a.String())
			}
		}
	}
	return netip.MustParseAddr(pick(g.R, list...))
}

// port is one that policies know, a client's, or any.
func (g *Generator) port() uint16 {
	switch g.R.IntN(10) {
	case 0:
		return uint16(1 + g.R.IntN(65535))
	case 1, 2:
		return pick[uint16](g.R, 1000, 2000, 33000, 41000, 50000)
	}
	return pick[uint16](g.R, 53, 80, 81, 443, 1024, 8080, 8081, 9090, 30000, 65535)
}

func (g *Generator) flags() string {
	return pick(g.R, "S", "S", "S", "A", "A", "PA", "FA", "R", "RA", "SA", "", "F", "SF", "FPU", "SR", "SAE", "P")
}

// write makes the packet.
func (g *Generator) write(d *draft, src, dst, own netip.Addr) bool {
	d.Begins = true
	tag := append(tagOf(d.N), make([]byte, g.R.IntN(5)*8)...)
	payload := "hex:" + hex.EncodeToString(tag)
	sport, dport := g.port(), g.port()
	proto := 6
	if g.odds(15) && len(g.recent) > 0 {
		if f := pick(g.R, g.recent...).reverse(); d.From.Has(f.Src) && !f.isICMP() {
			src, dst, sport, dport, proto = f.Src, f.Dst, f.SPort, f.DPort, int(f.Proto)
			d.f = map[bool]int{true: 4, false: 6}[src.Is4()]
			d.to = g.Model.place(dst)
		}
	} else {
		proto = pick(g.R, 6, 6, 6, 6, 17, 17, 17, 17, 132, 1, 1, 0, -1)
	}
	if d.to == nil {
		return false
	}
	if len(g.Services) > 0 && g.odds(10) {
		if s := pick(g.R, g.Services...); s.Addr().Is4() == dst.Is4() {
			dst, dport = s.Addr(), s.Port()
		}
	}
	line := fmt.Sprintf("ip%d %s > %s", d.f, src, dst)
	d.Claimed = src
	switch proto {
	case 6:
		flags := g.flags()
		d.Kind = "tcp " + flags
		line += fmt.Sprintf(" | tcp %d > %d %s", sport, dport, flags)
		line += fmt.Sprintf(" seq %d ack %d | %s", g.R.Uint32(), g.R.Uint32(), payload)
	case 17:
		d.Kind = "udp"
		line += fmt.Sprintf(" | udp %d > %d | %s", sport, dport, payload)
	case 132:
		d.Kind = "sctp"
		line += fmt.Sprintf(" | sctp %d > %d vtag %d data | %s", sport, dport, g.R.Uint32(), payload)
	case 1:
		d.Kind = "icmp"
		line += fmt.Sprintf(" | icmp %s id %d seq 1 | %s", pick(g.R, "echo", "echo", "echo-reply"), sport, payload)
	case 0:
		return g.writeError(d, line, own, payload)
	default:
		d.Kind = "other protocol"
		line += fmt.Sprintf(" proto %d | %s", pick(g.R, 47, 50, 99, 255), payload)
	}
	return g.parse(d, line)
}

func (g *Generator) parse(d *draft, line string) bool {
	b, err := packet.ParseIP(line, packet.Family(d.f), nil)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", line, err)) // the generator writes what the parser knows
	}
	d.ip = b
	return true
}

// writeError makes an ICMP error about a flow of the sender's, of the receiver's, or of none.
func (g *Generator) writeError(d *draft, line string, own netip.Addr, payload string) bool {
	d.Kind, d.Begins = "icmp error", false
	quoted := Flow{Src: g.address(d.to, d.f), Dst: own, Proto: UDP, SPort: g.port(), DPort: g.port()}
	if len(g.recent) > 0 && g.odds(75) {
		quoted = pick(g.R, g.recent...)
		if g.odds(30) {
			quoted = quoted.reverse()
		}
	}
	wrong := func(a netip.Addr) bool { return !a.IsValid() || a.Is4() != (d.f == 4) }
	if wrong(quoted.Src) || wrong(quoted.Dst) {
		return false
	}
	l4 := fmt.Sprintf("udp %d > %d", quoted.SPort, quoted.DPort)
	switch quoted.Proto {
	case TCP:
		l4 = fmt.Sprintf("tcp %d > %d A", quoted.SPort, quoted.DPort)
	case UDP:
	default:
		return false
	}
	more := "hex:" + hex.EncodeToString(make([]byte, g.R.IntN(150)*8)) + strings.TrimPrefix(payload, "hex:")
	kind := pick(g.R, "unreachable port", "unreachable admin", "too-big mtu 1300", "time-exceeded", "parameter-problem")
	line += fmt.Sprintf(" | icmp %s quote +1400 | ip%d %s > %s", kind, d.f, quoted.Src, quoted.Dst)
	return g.parse(d, line+" | "+l4+" | "+more)
}

// frames puts Ethernet around the packets.
func (g *Generator) frames(d *draft) {
	source := g.MACs[d.From.Name]
	next := g.MACs["gw-"+d.From.Name]
	if !d.From.Pod {
		next = g.MACs["world"]
		if d.to.Node != "" {
			next = g.MACs[d.to.Node]
		}
		broadcast := netip.MustParseAddr("255.255.255.255")
		if s, ok := ReadIP(d.packets[0]); ok && (s.Dst.IsMulticast() || s.Dst == broadcast) {
			next = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
		}
	}
	if g.odds(2) {
		source = net.HardwareAddr{2, 0x66, 0, 0, 0, byte(g.R.IntN(4))}
	}
	if g.odds(2) {
		next = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	}
	for i, ip := range d.packets {
		frame := append(append([]byte{}, next...), source...)
		for each := range strings.FieldsSeq(d.tags) {
			frame = append(frame, map[string][]byte{"q": {0x81, 0}, "ad": {0x88, 0xa8}}[each]...)
			frame = append(frame, 0, byte(pick(g.R, 0, 0, 0, 5)))
		}
		kind := []byte{0x08, 0}
		if len(ip) > 0 && ip[0]>>4 == 6 {
			kind = []byte{0x86, 0xdd}
		}
		frame = append(append(frame, kind...), ip...)
		if i < len(d.pads) {
			frame = append(frame, d.pads[i]...)
		}
		d.Frames = append(d.Frames, frame)
	}
}

// Text is an attempt's frames, one a line, in the language of package packet.
func (a *Attempt) Text(names packet.Names) string {
	var text strings.Builder
	fmt.Fprintf(&text, "# %d: %s sends %s, which may be %v\n", a.N, a.From.Name, a.Kind, a.Real)
	for _, frame := range a.Frames {
		fmt.Fprintln(&text, packet.Format(frame, names))
	}
	return text.String()
}
