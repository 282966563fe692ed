// Package flow shows the datapath's flows and forwarding cache, and removes the rows
// of flows that are over.
package flow

import (
	"fmt"
	"net/netip"
	"time"

	"myelin/bpf"
	"myelin/event"
)

// Key and Row are a row of the map "flows", see row.h.
type (
	Key = bpf.DatapathFlowKey
	Row = bpf.DatapathFlow
)

// State says how far a flow is.
type State string

// The states.
const (
	Unreplied State = "unreplied" // packets one way only; of TCP: SYN sent
	Replied   State = "replied"   // packets both ways; of TCP: established
	Closing   State = "closing"   // TCP: FIN both ways, or RST
)

// stateOf is the state of a row.
func stateOf(r *Row) State {
	switch flags := bpf.DatapathFlowFlag(r.Flags); {
	case flags&bpf.DatapathFlowFlagFLOW_CLOSING != 0:
		return Closing
	case flags&bpf.DatapathFlowFlagFLOW_REPLIED != 0:
		return Replied
	}
	return Unreplied
}

// lifetime is for how long a row is kept after its last packet.
// A TCP connection is established, and kept for long, only after the side that
// began has acknowledged the answer: it is flow_established.
func lifetime(r *Row, protocol uint8) time.Duration {
	s := stateOf(r)
	if protocol == tcp && s == Replied && r.Side[origin(r)].TcpFlags&ACK == 0 {
		s = Unreplied
	}
	if s == Closing && timeWait(r) {
		return TimeWait
	}
	return s.Lifetime(protocol)
}

// timeWait reports whether the server of a closed flow may be in TIME-WAIT with a NAT port of the node: it was the
// first to send FIN.
func timeWait(r *Row) bool {
	const clean = bpf.DatapathFlowFlagFLOW_POD_FIN
	return translated(r) && bpf.DatapathFlowFlag(r.Flags)&clean == 0 && (r.Side[0].TcpFlags|r.Side[1].TcpFlags)&RST == 0
}

// TimeWait is the lifetime of an entry with a port of the node's whose server
// was the first to say FIN, and may be in TIME-WAIT.
const TimeWait = time.Duration(bpf.DatapathFlowSecondsFLOW_TIME_WAIT_SECONDS) * time.Second

// Flags of a TCP segment (RFC 9293 3.1).
const (
	FIN = 0x01
	RST = 0x04
	ACK = 0x10
)

const tcp = 6 // IPPROTO_TCP

// Lifetime is for how long a flow of the protocol is kept after its last packet.
// The numbers are those of row.h.
func (s State) Lifetime(protocol uint8) time.Duration {
	seconds := bpf.DatapathFlowSecondsFLOW_OTHER_SECONDS
	switch {
	case s == Closing:
		seconds = bpf.DatapathFlowSecondsFLOW_CLOSING_SECONDS
	case protocol == tcp && s == Replied:
		seconds = bpf.DatapathFlowSecondsFLOW_TCP_SECONDS
	case protocol == tcp:
		seconds = bpf.DatapathFlowSecondsFLOW_SYN_SECONDS
	}
	return time.Duration(seconds) * time.Second
}

// Clock is the datapath's clock at one moment.
type Clock struct {
	Ticks uint64        // jiffies
	Hz    uint32        // ticks a second
	Since time.Duration // CLOCK_MONOTONIC
}

// Idle is how long ago a tick was, of which the row has 32 bits; 0 for one that is still to come, as that of
// a packet that passed after the clock was read.
func (c Clock) Idle(tick uint32) time.Duration {
	ticks := int32(uint32(c.Ticks) - tick)
	if ticks <= 0 || c.Hz == 0 {
		return 0
	}
	return time.Duration(ticks) * time.Second / time.Duration(c.Hz)
}

// Age is how long ago a tick was, of which the row has all bits; 0 for one that
// is still to come.
func (c Clock) Age(tick uint64) time.Duration {
	if tick >= c.Ticks || c.Hz == 0 {
		return 0
	}
	ticks, hz := c.Ticks-tick, uint64(c.Hz)
	return time.Duration(ticks/hz)*time.Second + time.Duration(ticks%hz)*time.Second/time.Duration(hz)
}

// Expired reports whether the datapath takes the row for gone.
func (c Clock) Expired(k *Key, r *Row) bool { return c.Idle(r.Seen) > lifetime(r, k.Proto) }

// evidence is what the packets of a flow have shown, and the tick of the last one.
func evidence(k *Key, r *Row) (Evidence, uint32) {
	switch {
	case proven(k, r):
		return Proven, r.Seen
	case timeWait(r):
		return Lingering, r.Seen
	}
	return Unproven, r.Seen
}

// proven reports whether packets of both ends of a flow that is not closed
// prove that they exist.
func proven(k *Key, r *Row) bool {
	return lifetime(r, k.Proto) >= time.Duration(bpf.DatapathFlowSecondsFLOW_TCP_SECONDS)*time.Second ||
		k.Proto != tcp && stateOf(r) == Replied
}

// ReadClock asks the kernel.
func ReadClock(hz uint32) (Clock, error) {
	ticks, err := bpf.Ticks()
	if err != nil {
		return Clock{}, err
	}
	since, err := event.Monotonic()
	return Clock{ticks, hz, since}, err
}

// translated reports whether the pod is behind the node's address.
func translated(r *Row) bool {
	return bpf.DatapathFlowFlag(r.Flags)&bpf.DatapathFlowFlagFLOW_NAT != 0
}

// origin is the side of the key that began the flow.
func origin(r *Row) int { return int(r.Origin & 1) }

// podSide is the side of the key that stands for the pod of a translated flow.
func podSide(r *Row) int { return int(r.PodSide & 1) }

// end is the address and port of a side, as the wire sees it.
func end(k *Key, side int) netip.AddrPort {
	return netip.AddrPortFrom(k.Addr[side].Netip(), bpf.Port(k.Port[side]))
}

// Each calls fn for each row of the map "flows" until it returns false. Its
// counts lack what CPUs have not added yet.
func Each(d *bpf.Datapath, fn func(*Key, *Row) bool) error {
	if err := bpf.Each(d.Flows, fn); err != nil {
		return fmt.Errorf("read flows: %w", err)
	}
	return nil
}
