package flow

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"time"

	"myelin/bpf"
	"myelin/event"
)

// Flow is a row with names, as lists show it. Src began it.
type Flow struct {
	Src      event.Party `json:"source"`
	Dst      event.Party `json:"destination"`
	Protocol string      `json:"protocol"`
	// Translated is what the wire sees in place of the pod; invalid where
	// nothing is translated.
	Translated netip.AddrPort `json:"translated,omitzero"`
	Endpoint   uint16         `json:"endpoint,omitempty"` // at which it began
	// Rules are the policy rules that decided about it; Denied says that they forbid it
	// now.
	Rules  event.Rules `json:"rules,omitzero"`
	Denied bool        `json:"denied,omitempty"`
	// ID names the flow as long as it has a row, on this node.
	ID string `json:"id"`
	Course
}

// Course is how far a flow is.
type Course struct {
	State    State   `json:"state"`
	Sent     Traffic `json:"sent"`     // by the side that opened it
	Received Traffic `json:"received"` // by the same
	Age      Seconds `json:"ageSeconds"`
	Idle     Seconds `json:"idleSeconds"`
	Expired  bool    `json:"expired,omitempty"` // its place may be taken at any time
}

// Traffic is what went in one direction.
type Traffic struct {
	Packets  uint64         `json:"packets"`
	Bytes    uint64         `json:"bytes"` // from the Ethernet header on
	TCPFlags event.TCPFlags `json:"tcpFlags,omitempty"`
}

// Seconds is a duration that JSON has as a number.
type Seconds time.Duration

// MarshalJSON writes seconds.
func (s Seconds) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%.3f", time.Duration(s).Seconds()), nil
}

// String is short: "1h2m3s", "0.4s".
func (s Seconds) String() string {
	d := time.Duration(s)
	if d < 10*time.Second {
		return d.Truncate(100 * time.Millisecond).String()
	}
	return d.Truncate(time.Second).String()
}

// Name gives a row its names.
func Name(names event.Names, clock Clock, k *Key, r *Row) *Flow {
	from := origin(r)
	src, dst := end(k, from), end(k, 1-from)
	f := &Flow{
		Protocol: event.Protocol(k.Proto), Endpoint: r.Slot, ID: ID(k), Rules: event.RulesOf(names, r.Rule),
		Denied: bpf.DatapathFlowFlag(r.Flags)&bpf.DatapathFlowFlagFLOW_DENIED != 0, Course: Course{
			State: stateOf(r), Sent: traffic(r, from), Received: traffic(r, 1-from),
			Age: Seconds(clock.Age(r.Created)), Idle: Seconds(clock.Idle(r.Seen)), Expired: clock.Expired(k, r),
		},
	}
	if translated(r) {
		pod := netip.AddrPortFrom(r.Pod.Netip(), bpf.Port(r.PodPort))
		if side := podSide(r); side == from {
			f.Translated, src = src, pod
		} else {
			f.Translated, dst = dst, pod
		}
	}
	f.Src, f.Dst = PartyOf(names, src), PartyOf(names, dst)
	return f
}

// ID is a flow's name: 16 hexadecimal digits, a hash of the key of its row.
func ID(k *Key) string {
	h := fnv.New64a()
	fmt.Fprint(h, *k) // never fails
	return fmt.Sprintf("%016x", h.Sum64())
}

func traffic(r *Row, side int) Traffic {
	s := &r.Side[side]
	return Traffic{s.Packets, s.Bytes, event.TCPFlags(s.TcpFlags)}
}

// PartyOf gives an end its names.
func PartyOf(names event.Names, a netip.AddrPort) event.Party {
	p := event.Party{Addr: a.Addr(), Port: a.Port()}
	p.Pod, p.Identity = names.Owner(a.Addr())
	return p
}

// List calls fn for each flow until it returns false.
func List(d *bpf.Datapath, names event.Names, clock Clock, fn func(*Flow) bool) error {
	pending, err := bpf.ReadPending(d)
	if err != nil {
		return fmt.Errorf("read flows: %w", err)
	}
	return Each(d, func(k *Key, r *Row) bool {
		pending.Add(k, r)
		return fn(Name(names, clock, k, r))
	})
}

// TableHeader names the columns of TableRow.
func (*Flow) TableHeader() []string {
	header := append([]string{"Source", "Destination", "Protocol", "Translated"}, (*Course)(nil).TableHeader()...)
	return append(header, "Rules", "ID")
}

// TableRow is the row as text.
func (f *Flow) TableRow() []string {
	translated := "-"
	if f.Translated.IsValid() {
		translated = f.Translated.String()
	}
	course := f.Course.TableRow()
	if f.Denied {
		course[0] = "denied"
	}
	return append(append([]string{f.Src.String(), f.Dst.String(), f.Protocol, translated}, course...),
		f.Rules.String(), f.ID)
}

// TableHeader names the columns of TableRow.
func (*Course) TableHeader() []string {
	return []string{"State", "Packets", "Bytes", "Flags", "Age", "Idle"}
}

// TableRow is how far the flow is as text; what has two directions is
// "sent/received".
func (c *Course) TableRow() []string {
	state := string(c.State)
	if c.Expired {
		state = "expired"
	}
	flags := "-"
	if c.Sent.TCPFlags|c.Received.TCPFlags != 0 {
		flags = c.Sent.TCPFlags.String() + "/" + c.Received.TCPFlags.String()
	}
	return []string{
		state, both(c.Sent.Packets, c.Received.Packets), both(c.Sent.Bytes, c.Received.Bytes), flags, c.Age.String(),
		c.Idle.String(),
	}
}

func both(sent, received uint64) string { return fmt.Sprintf("%d/%d", sent, received) }
