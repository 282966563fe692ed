// Package nat reads the NAT entries of flows to Services: their state and expiry, and their garbage collection.
package nat

import (
	"log/slog"
	"sync/atomic"

	"myelin/bpf"
	"myelin/flow"
	"myelin/service"
)

// Gone is the state of a TCP flow whose backend was deleted: the client's next packet is answered with a reset.
const Gone flow.State = "gone"

// State is the state of the flow of an entry.
func State(r *bpf.DatapathNatEntry) flow.State {
	switch flags := bpf.DatapathNatEntryFlag(r.Flags); {
	case flags&bpf.DatapathNatEntryFlagNAT_ENTRY_GONE != 0:
		return Gone
	case flags&bpf.DatapathNatEntryFlagNAT_ENTRY_CLOSING != 0:
		return flow.Closing
	case flags&bpf.DatapathNatEntryFlagNAT_ENTRY_REPLIED != 0:
		return flow.Replied
	}
	return flow.Unreplied
}

// Expired reports whether an entry has expired, by the same rule as nat_entry_expired in the datapath. With DSR, this
// node does not see the replies.
func Expired(clock flow.Clock, k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry) bool {
	const replied = bpf.DatapathNatEntryFlagNAT_ENTRY_REPLIED | bpf.DatapathNatEntryFlagNAT_ENTRY_DSR
	state := flow.Unreplied
	switch flags := bpf.DatapathNatEntryFlag(r.Flags); {
	case flags&bpf.DatapathNatEntryFlagNAT_ENTRY_CLOSING != 0, r.TcpFlags[0]&r.TcpFlags[1]&flow.FIN != 0:
		state = flow.Closing
	case flags&replied != 0:
		state = flow.Replied
	}
	if state == flow.Replied && k.Proto == uint8(service.TCP) && r.TcpFlags[0]&flow.ACK == 0 {
		state = flow.Unreplied
	}
	life := state.Lifetime(k.Proto)
	if state == flow.Closing && inTimeWait(r) {
		life = flow.TimeWait
	}
	return clock.Idle(r.Seen) > life
}

// inTimeWait reports whether the backend's socket may be in TIME-WAIT with a NAT port of the node. It is the opposite
// of nat_entry_clean in the datapath.
func inTimeWait(r *bpf.DatapathNatEntry) bool {
	const snat = bpf.DatapathNatEntryFlagNAT_ENTRY_SNAT
	const clean = bpf.DatapathNatEntryFlagNAT_ENTRY_CLIENT_FIN
	return bpf.DatapathNatEntryFlag(r.Flags)&(snat|clean) == snat && (r.TcpFlags[0]|r.TcpFlags[1])&flow.RST == 0
}

// Collector deletes expired NAT entries.
type Collector = flow.Expiry[bpf.DatapathNatTuple, bpf.DatapathNatEntry]

// NewCollector makes a Collector. Clients that are pods of this node have shares of the table.
func NewCollector(d *bpf.Datapath, log *slog.Logger) *Collector {
	slots := map[bpf.DatapathAddr]uint16{}
	orphans := &orphans{datapath: d}
	return &Collector{
		Datapath: d, Log: log, Map: d.NatEntries, Rows: "flows of Services",
		Over: Expired, Count: new(atomic.Uint64),
		Shares: flow.NewShares(d, bpf.DatapathShareKindSHARE_NAT_ENTRIES, int(d.NatEntries.MaxEntries())),
		Ended: func(_ flow.Clock, k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry) {
			if err := d.DeleteNatReply(k, r); err != nil {
				log.Warn("a flow that is over keeps its NAT port", "error", err)
			}
		},
		Before: func() error {
			clear(slots)
			if err := orphans.delete(); err != nil {
				return err
			}
			return bpf.Each(d.Endpoints, func(a *bpf.DatapathAddr, e *bpf.DatapathEndpoint) bool {
				slots[*a] = e.Slot
				return true
			})
		},
		Slot:     func(k *bpf.DatapathNatTuple, _ *bpf.DatapathNatEntry) uint16 { return slots[k.Src] },
		Evidence: evidence, Demand: Demand,
	}
}

// evidence is what the packets of a flow have shown, and the tick of the last one. With DSR, that is never nothing.
func evidence(k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry) (flow.Evidence, uint32) {
	switch {
	case direct(r), Proven(k, r):
		return flow.Proven, r.Seen
	case inTimeWait(r):
		return flow.Lingering, r.Seen
	}
	return flow.Unproven, r.Seen
}

func direct(r *bpf.DatapathNatEntry) bool {
	return bpf.DatapathNatEntryFlag(r.Flags)&bpf.DatapathNatEntryFlagNAT_ENTRY_DSR != 0
}

// Demand is flow.Demand of a NAT entry. With DSR, no packet of the backend is seen: only proven flows count.
func Demand(clock flow.Clock, k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry) int {
	if Expired(clock, k, r) {
		return 0
	}
	return flow.DemandOf(Proven(k, r), inTimeWait(r), r.TcpFlags[0], r.TcpFlags[1])
}

// Proven reports whether the client has shown that it receives replies; with DSR, that it sends more than once. It is
// nat_entry_proven in the datapath.
func Proven(k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry) bool {
	state, isTCP := State(r), k.Proto == uint8(service.TCP)
	if state == flow.Closing || state == Gone || isTCP && r.TcpFlags[0]&flow.ACK == 0 {
		return false
	}
	return state == flow.Replied || direct(r) && (isTCP || r.Packets[0] != 1)
}
