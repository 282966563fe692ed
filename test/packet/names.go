package packet

import (
	"bytes"
	"net"
	"net/netip"
	"sort"
	"strings"
)

// Family is the address family that a line of text is read for.
type Family uint8

// The two families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String returns "ip4" or "ip6".
func (f Family) String() string {
	if f == IPv6 {
		return "ip6"
	}
	return "ip4"
}

// Name is what a symbolic name stands for. A field left zero can't be used
// where that kind of address is wanted.
type Name struct {
	MAC net.HardwareAddr
	IP4 netip.Addr
	IP6 netip.Addr
}

// Names maps symbolic names to addresses. These are always there, unless
// Names redefines them:
//
//	none         all zeros
//	broadcast    ff:ff:ff:ff:ff:ff, 255.255.255.255
//	all-nodes    224.0.0.1, ff02::1 and their MACs
//	all-routers  224.0.0.2, ff02::2 and their MACs
//
// solicited:NAME is the solicited-node multicast address (RFC 4291 section
// 2.7.1) of NAME's IPv6 address, and its MAC.
//
// A name must not contain white space, '|', '"' or '>'; one that does is
// ignored. Where two names share an address, Format uses the first in
// alphabetical order.
type Names map[string]Name

const solicitedWord = "solicited:"

// lookup finds what word names.
func (n Names) lookup(word string) (Name, bool) {
	if name, ok := n[word]; ok {
		return name, true
	}
	if of, ok := strings.CutPrefix(word, solicitedWord); ok {
		name, ok := n.lookup(of)
		if !ok || !name.IP6.Is6() {
			return Name{}, false
		}
		return solicited(name.IP6), true
	}
	return builtin(word)
}

func builtinWords() []string { return []string{"none", "broadcast", "all-nodes", "all-routers"} }

func builtin(word string) (Name, bool) {
	switch word {
	case "none":
		return Name{make(net.HardwareAddr, 6), netip.IPv4Unspecified(), netip.IPv6Unspecified()}, true
	case "broadcast":
		return Name{MAC: bytes.Repeat([]byte{0xff}, 6), IP4: netip.AddrFrom4([4]byte{255, 255, 255, 255})}, true
	case "all-nodes":
		ip6 := netip.IPv6LinkLocalAllNodes()
		return Name{multicastMAC(ip6), netip.AddrFrom4([4]byte{224, 0, 0, 1}), ip6}, true
	case "all-routers":
		ip6 := netip.IPv6LinkLocalAllRouters()
		return Name{multicastMAC(ip6), netip.AddrFrom4([4]byte{224, 0, 0, 2}), ip6}, true
	}
	return Name{}, false
}

func solicited(of netip.Addr) Name {
	a := of.As16()
	ip := netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]})
	return Name{MAC: multicastMAC(ip), IP6: ip}
}

// multicastMAC is the MAC that an IPv6 multicast address is sent to, RFC 2464
// section 7.
func multicastMAC(ip netip.Addr) net.HardwareAddr {
	a := ip.As16()
	return net.HardwareAddr{0x33, 0x33, a[12], a[13], a[14], a[15]}
}

// mac takes a MAC address or a name.
func (l *line) mac(names Names) (mac [6]byte) {
	w := l.peek()
	if name, ok := names.lookup(w); ok {
		if len(name.MAC) != 6 {
			l.fail("has no MAC")
			return mac
		}
		l.pos++
		return [6]byte(name.MAC)
	}
	hw, err := net.ParseMAC(w)
	if err != nil || len(hw) != 6 {
		l.fail("neither a name nor a MAC")
		return mac
	}
	l.pos++
	return [6]byte(hw)
}

// addr takes an address of family f or a name. The address is valid even
// after an error.
func (l *line) addr(f Family, names Names) netip.Addr {
	zero := netip.IPv4Unspecified()
	if f == IPv6 {
		zero = netip.IPv6Unspecified()
	}
	w := l.peek()
	if name, ok := names.lookup(w); ok {
		a := name.IP4
		if f == IPv6 {
			a = name.IP6
		}
		if !ofFamily(a, f) {
			l.fail("has no %s address", f)
			return zero
		}
		l.pos++
		return a
	}
	a, err := netip.ParseAddr(w)
	if err != nil || !ofFamily(a, f) {
		l.fail("neither a name nor an %s address", f)
		return zero
	}
	l.pos++
	return a
}

func ofFamily(a netip.Addr, f Family) bool {
	if f == IPv6 {
		return a.Is6() && a.Zone() == ""
	}
	return a.Is4()
}

// reverse is Names the other way round.
type reverse struct {
	names Names
	macs  map[[6]byte]string
	addrs map[netip.Addr]string
}

func (n Names) reverse() reverse {
	r := reverse{names: n, macs: map[[6]byte]string{}, addrs: map[netip.Addr]string{}}
	var words []string
	for w := range n {
		if w != "" && !strings.ContainsAny(w, " \t\n\r\v\f|\"><\u0085\u00a0") {
			words = append(words, w)
		}
	}
	sort.Strings(words)
	for _, w := range words {
		r.add(w)
	}
	for _, w := range words {
		if _, ok := n[solicitedWord+w]; !ok && n[w].IP6.Is6() {
			r.add(solicitedWord + w)
		}
	}
	for _, w := range builtinWords() {
		if _, ok := n[w]; !ok {
			r.add(w)
		}
	}
	return r
}

func (r reverse) add(word string) {
	name, _ := r.names.lookup(word)
	if len(name.MAC) == 6 {
		if _, ok := r.macs[[6]byte(name.MAC)]; !ok {
			r.macs[[6]byte(name.MAC)] = word
		}
	}
	if _, ok := r.addrs[name.IP4]; !ok && name.IP4.Is4() {
		r.addrs[name.IP4] = word
	}
	if _, ok := r.addrs[name.IP6]; !ok && ofFamily(name.IP6, IPv6) {
		r.addrs[name.IP6] = word
	}
}

func (r reverse) mac(b []byte) string {
	if w, ok := r.macs[[6]byte(b)]; ok {
		return w
	}
	return net.HardwareAddr(b).String()
}

// addr returns the word for an address. A v4-mapped IPv6 address is written
// as such.
func (r reverse) addr(a netip.Addr) string {
	if w, ok := r.addrs[a]; ok {
		return w
	}
	return a.String()
}

// macOf returns the MAC of what word names, and whether it names something
// with a MAC.
func (r reverse) macOf(word string) (mac [6]byte, ok bool) {
	name, ok := r.names.lookup(word)
	if !ok || len(name.MAC) != 6 {
		return mac, false
	}
	return [6]byte(name.MAC), true
}
