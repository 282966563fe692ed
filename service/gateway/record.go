// Package gateway is a standalone load balancer among its peers, which have the same frontends: they know each other's
// flows, so that one whose packets begin to arrive at another load balancer keeps its backend, and each can be drained.
package gateway

import (
	"net/netip"
	"time"

	apiv1 "myelin/api/v1"
	"myelin/bpf"
	"myelin/flow"
	"myelin/service"
	"myelin/service/nat"
)

// The states that are synchronised.
const (
	established = apiv1.PeerFlowState_PEER_FLOW_STATE_ESTABLISHED
	closing     = apiv1.PeerFlowState_PEER_FLOW_STATE_CLOSING
	ended       = apiv1.PeerFlowState_PEER_FLOW_STATE_ENDED
	// unproven flows are not synchronised: a flood of SYNs must not become one of the peers' tables.
	unproven = apiv1.PeerFlowState_PEER_FLOW_STATE_UNSPECIFIED
)

// Flags of NAT entries.
const (
	flagSNAT    = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_SNAT)
	flagClosing = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_CLOSING)
	flagReplied = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_REPLIED)
	flagGone    = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_GONE)
	flagDSR     = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_DSR)
)

// provenRequests is the number of requests that make a flow worth synchronising whose protocol has no handshake.
const provenRequests = 2

// stateOf is the state of an entry that has not expired.
func stateOf(k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry) apiv1.PeerFlowState {
	switch {
	case nat.State(r) == flow.Closing, r.TcpFlags[0]&r.TcpFlags[1]&flow.FIN != 0:
		return closing
	case k.Proto != uint8(service.TCP) && r.Packets[0] >= provenRequests:
		return established
	case k.Proto == uint8(service.TCP) && r.Flags&(flagReplied|flagDSR) != 0 && r.TcpFlags[0]&flow.ACK != 0:
		return established
	}
	return unproven
}

// learned reports whether an entry is a peer's flow of which no request has arrived here.
func learned(r *bpf.DatapathNatEntry) bool { return r.Packets[0] == 0 }

// message is the entry as peers get it.
func message(
	clock flow.Clock, k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry, state apiv1.PeerFlowState,
) *apiv1.PeerFlow {
	m := identity(k)
	m.BackendAddress, m.BackendPort = r.Backend.Netip().AsSlice(), uint32(bpf.Port(r.BackendPort))
	if r.Flags&flagSNAT != 0 {
		m.SnatAddress, m.SnatPort = r.Snat.Netip().AsSlice(), uint32(bpf.Port(r.NatPort))
	}
	m.State, m.IdleMs = state, uint32(min(clock.Idle(r.Seen).Milliseconds(), 1<<31))
	m.AgeSeconds = uint32(min(int64(clock.Age(r.CreatedAt())/time.Second), 1<<31))
	return m
}

// identity has the fields of a flow that say which one it is.
func identity(k *bpf.DatapathNatTuple) *apiv1.PeerFlow {
	return &apiv1.PeerFlow{
		ClientAddress: k.Src.Netip().AsSlice(), ClientPort: uint32(bpf.Port(k.Sport)),
		FrontendAddress: k.Dst.Netip().AsSlice(), FrontendPort: uint32(bpf.Port(k.Dport)), Protocol: uint32(k.Proto),
	}
}

// maxIdle is longer than any entry is kept, and short enough for 32 bits of the clock.
const maxIdle = 3 * time.Hour

// record is a flow that a peer has sent, whose fields are valid one by one.
type record struct {
	client, frontend, backend netip.AddrPort
	snat                      netip.AddrPort // invalid with DSR
	protocol                  service.Protocol
	state                     apiv1.PeerFlowState
	idle, age                 time.Duration
}

// parse reads a message of a peer, which can be anything. It returns false if no load balancer has such a flow.
func parse(m *apiv1.PeerFlow) (r record, ok bool) {
	ok = true
	host := func(address []byte, port uint32) netip.AddrPort {
		a, valid := netip.AddrFromSlice(address)
		ok = ok && valid && isHost(a) && port > 0 && port < 1<<16
		return netip.AddrPortFrom(a, uint16(port))
	}
	r.client = host(m.GetClientAddress(), m.GetClientPort())
	r.frontend = host(m.GetFrontendAddress(), m.GetFrontendPort())
	r.protocol, r.state = service.Protocol(m.GetProtocol()), m.GetState()
	r.idle = min(time.Duration(m.GetIdleMs())*time.Millisecond, maxIdle)
	r.age = max(time.Duration(m.GetAgeSeconds())*time.Second, r.idle)
	switch {
	case m.GetProtocol() > 255, r.protocol != service.TCP && r.protocol != service.UDP && r.protocol != service.SCTP,
		r.client.Addr().Is4() != r.frontend.Addr().Is4():
		return r, false
	case r.state == ended:
		return r, ok
	case r.state != established && r.state != closing:
		return r, false
	}
	r.backend = host(m.GetBackendAddress(), m.GetBackendPort())
	if len(m.GetSnatAddress()) == 0 {
		return r, ok && r.backend.Addr().Is4() == r.client.Addr().Is4()
	}
	r.snat = host(m.GetSnatAddress(), m.GetSnatPort())
	return r, ok && r.backend.Addr().Is4() == r.snat.Addr().Is4()
}

// isHost reports whether an address can be that of one host.
func isHost(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// key returns the key of the flow's NAT entry.
func (r *record) key() bpf.DatapathNatTuple {
	return bpf.DatapathNatTuple{
		Src: bpf.Addr(r.client.Addr()), Sport: bpf.Port(r.client.Port()),
		Dst: bpf.Addr(r.frontend.Addr()), Dport: bpf.Port(r.frontend.Port()), Proto: uint8(r.protocol),
	}
}

// entry is the flow's NAT entry. It has no packets, which is how it is known as a peer's.
func (r *record) entry(clock flow.Clock, member member) bpf.DatapathNatEntry {
	e := bpf.DatapathNatEntry{
		Backend: bpf.Addr(r.backend.Addr()), BackendPort: bpf.Port(r.backend.Port()),
		Service: member.service, BackendId: member.backend,
		Seen: uint32(clock.Ticks - ticks(clock, r.idle)), Flags: flagDSR,
	}
	e.SetCreatedAt(clock.Ticks - ticks(clock, r.age))
	if r.snat.IsValid() {
		e.Snat, e.NatPort = bpf.Addr(r.snat.Addr()), bpf.Port(r.snat.Port())
		e.Flags = flagSNAT | flagReplied
	}
	if r.state == closing {
		e.Flags |= flagClosing
	}
	if r.protocol == service.TCP {
		e.TcpFlags[0] = flow.ACK
	}
	return e
}

// ticks is a duration by the datapath's clock, at most since its begin.
func ticks(clock flow.Clock, d time.Duration) uint64 {
	return min(uint64(d.Milliseconds())*uint64(clock.Hz)/1000, clock.Ticks)
}
