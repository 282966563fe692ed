// Package event reads what the datapath tells of drops and flows, and hands it
// to whoever listens.
package event

import (
	"net"
	"net/netip"
	"time"

	"myelin/bpf"
	"myelin/drop"
)

// Raw is an event as the datapath wrote it, see event.h, or as package flow
// writes the end of a flow that no packet told: then its hook is Expired.
type Raw = bpf.DatapathEvent

// DNS is what an event of a DNS message says beside the packet, see l7/dns/row.h.
type DNS = bpf.DatapathDnsReport

// Expired in the place of a hook: the flow was not seen for too long.
const Expired = uint8(bpf.DatapathHookHOOKS)

// Type says what an event tells.
type Type string

// The types.
const (
	Drop      Type = "drop"
	FlowBegin Type = "flow-begin"
	FlowEnd   Type = "flow-end"
	// Lost stands for events that did not reach a subscriber.
	Lost Type = "lost"
)

// TypeOf is the type of an event of the datapath, empty for one that this
// program doesn't know.
func TypeOf(r *Raw) Type {
	switch bpf.DatapathEventType(r.Type) {
	case bpf.DatapathEventTypeEVENT_DROP:
		return Drop
	case bpf.DatapathEventTypeEVENT_FLOW_BEGIN:
		return FlowBegin
	case bpf.DatapathEventTypeEVENT_FLOW_END:
		return FlowEnd
	}
	return ""
}

// Party is one end of a packet's way.
type Party struct {
	Addr netip.Addr `json:"address,omitzero"`
	Port uint16     `json:"port,omitempty"` // or the identifier of an ICMP echo
	// Pod is "namespace/name", "host", "node NAME", or empty.
	Pod      string `json:"pod,omitempty"`
	Identity uint32 `json:"identity,omitempty"` // 0: not known
}

// Event is an event with the names of what it speaks of.
type Event struct {
	Time      time.Time `json:"time"`
	Type      Type      `json:"type"`
	Hook      bpf.Hook  `json:"hook,omitempty"`
	Outcome   string    `json:"outcome,omitempty"` // of a drop or a denied begin: a name of drop.h
	Reason    string    `json:"reason,omitempty"`  // the same as text
	Src       Party     `json:"source,omitzero"`
	Dst       Party     `json:"destination,omitzero"`
	Protocol  uint8     `json:"protocol,omitempty"` // IANA number
	EtherType uint16    `json:"ethertype,omitempty"`
	TCPFlags  TCPFlags  `json:"tcpFlags,omitempty"`
	Length    uint32    `json:"length,omitempty"` // bytes from the Ethernet header on
	Index     uint32    `json:"interfaceIndex,omitempty"`
	Interface string    `json:"interface,omitempty"`
	Endpoint  uint16    `json:"endpoint,omitempty"` // ID of the pod on this node
	SrcMAC    string    `json:"sourceMAC,omitempty"`
	Lost      uint64    `json:"lost,omitempty"`
	// Rules are those that decided about the flow. Of a drop, and of a begin that
	// was denied or audited, Denied is the direction that they denied, and Policy
	// says why.
	Rules  Rules  `json:"rules,omitzero"`
	Denied string `json:"denied,omitempty"` // "ingress", "egress" or empty
	Policy string `json:"policy,omitempty"`
}

// Names know what addresses and links are called. Whoever implements it must
// be safe for concurrent use.
type Names interface {
	// Owner is whose an address is, empty and 0 where that is not known.
	Owner(netip.Addr) (name string, identity uint32)
	// Link is the name of an interface, empty where that is not known.
	Link(index int) string
}

// Decoder turns raw events into named ones.
type Decoder struct {
	Names    Names
	outcomes *drop.Names
	boot     time.Time
}

// NewDecoder makes a decoder. boot is when CLOCK_MONOTONIC was zero.
func NewDecoder(names Names, boot time.Time) *Decoder {
	return &Decoder{Names: names, outcomes: drop.NewNames(), boot: boot}
}

// Decode names everything in r.
func (d *Decoder) Decode(r *Raw) *Event {
	e := &Event{
		Time: d.boot.Add(time.Duration(r.TimeNs)), Type: TypeOf(r), Src: d.party(r.Src, r.Sport),
		Dst:      d.party(r.Dst, r.Dport),
		Protocol: r.Proto, EtherType: bpf.Port(r.Ethertype), TCPFlags: TCPFlags(r.TcpFlags), Length: r.Length,
		Index:     r.Ifindex,
		Interface: d.Names.Link(int(r.Ifindex)), Endpoint: r.Slot,
	}
	if hooks := drop.Hooks(); int(r.Hook) < len(hooks) {
		e.Hook = hooks[r.Hook]
	}
	switch {
	case e.Type == FlowEnd && e.Hook == "":
		e.Reason = "expired"
	case e.Type == Drop, e.Type == FlowBegin && r.Outcome != 0:
		o := d.outcomes.Outcome(r.Outcome)
		e.Outcome, e.Reason = o.Name, o.Text()
	}
	if r.Smac.B != [6]byte{} {
		e.SrcMAC = net.HardwareAddr(r.Smac.B[:]).String()
	}
	d.addRules(e, r)
	return e
}

func (d *Decoder) party(a bpf.DatapathAddr, port uint16) Party {
	p := Party{Addr: a.Netip(), Port: bpf.Port(port)}
	if p.Addr.IsValid() {
		p.Pod, p.Identity = d.Names.Owner(p.Addr)
	}
	return p
}
