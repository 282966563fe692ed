package event

import (
	"fmt"
	"strconv"
	"strings"
)

// TCPFlags are those of a TCP header (RFC 9293 3.1), lowest bit FIN.
type TCPFlags uint8

// String has a letter for each flag that is set, as tcpdump writes them.
func (f TCPFlags) String() string {
	var b strings.Builder
	for bit, letter := range "FSRP.UEW" {
		if f&(1<<bit) != 0 {
			b.WriteRune(letter)
		}
	}
	return b.String()
}

// Protocol is the name of an IANA protocol number, or the number.
func Protocol(number uint8) string {
	switch number {
	case 0:
		return "hop-by-hop" // IPv6 options; what follows was not read
	case 1:
		return "ICMP"
	case 2:
		return "IGMP"
	case 6:
		return "TCP"
	case 17:
		return "UDP"
	case 44:
		return "fragment"
	case 58:
		return "ICMPv6"
	case 132:
		return "SCTP"
	}
	return "protocol " + strconv.Itoa(int(number))
}

// String is "address:port", with the owner in front: "ns/pod (65536)
// 10.0.1.2:80".
func (p Party) String() string {
	if !p.Addr.IsValid() {
		return "?"
	}
	text := p.Addr.String()
	switch {
	case p.Port != 0 && p.Addr.Is6():
		text = fmt.Sprintf("[%s]:%d", text, p.Port)
	case p.Port != 0:
		text = fmt.Sprintf("%s:%d", text, p.Port)
	}
	if p.Identity != 0 {
		text = fmt.Sprintf("(%d) %s", p.Identity, text)
	}
	if p.Pod != "" {
		text = p.Pod + " " + text
	}
	return text
}

// String is the event as one line: time, hook, what happened, both ends,
// what, where.
func (e *Event) String() string {
	if e.Type == Lost {
		noun := "events"
		if e.Lost == 1 {
			noun = "event"
		}
		return fmt.Sprintf("%s %d %s lost", e.Time.Format("15:04:05.000000"), e.Lost, noun)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %-9s %s", e.Time.Format("15:04:05.000000"), e.Hook,
		strings.ReplaceAll(string(e.Type), "-", " "))
	if e.Reason != "" {
		fmt.Fprintf(&b, ": %s", e.Reason)
	}
	fmt.Fprintf(&b, "  %s", e.packet())
	if e.Interface != "" {
		fmt.Fprintf(&b, "  %s", e.Interface)
	} else if e.Index != 0 {
		fmt.Fprintf(&b, "  interface %d", e.Index)
	}
	if e.Policy != "" {
		fmt.Fprintf(&b, "  %s", e.Policy)
	} else if rules := e.Rules.String(); rules != "" {
		fmt.Fprintf(&b, "  %s", rules)
	}
	return b.String()
}

// packet is source, destination and protocol.
func (e *Event) packet() string {
	if !e.Src.Addr.IsValid() && !e.Dst.Addr.IsValid() {
		return fmt.Sprintf("%s ethertype 0x%04x, %d bytes", e.SrcMAC, e.EtherType, e.Length)
	}
	text := fmt.Sprintf("%s → %s %s", e.Src, e.Dst, Protocol(e.Protocol))
	if e.TCPFlags != 0 {
		text += " [" + e.TCPFlags.String() + "]"
	}
	if e.Length != 0 {
		text += fmt.Sprintf(" %d bytes", e.Length)
	}
	if strings.Contains(e.Outcome, "MAC") {
		text += " from MAC " + e.SrcMAC
	}
	return text
}

// MarshalText writes the letters.
func (f TCPFlags) MarshalText() ([]byte, error) { return []byte(f.String()), nil }
