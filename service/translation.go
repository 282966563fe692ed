package service

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"sync/atomic"

	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/event"
	"myelin/flow"
)

// Gone is the state of a TCP flow whose backend is no more: the client's next
// packet is answered by a reset.
const Gone flow.State = "gone"

func translationState(r *bpf.DatapathNatEntry) flow.State {
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

// translationOver reports whether the datapath takes the row for gone: it is
// translation_expired. Of direct answers this node sees nothing.
func translationOver(clock flow.Clock, k *bpf.DatapathNatEntryKey, r *bpf.DatapathNatEntry) bool {
	const replied = bpf.DatapathNatEntryFlagNAT_ENTRY_REPLIED | bpf.DatapathNatEntryFlagNAT_ENTRY_DSR
	state := flow.Unreplied
	switch flags := bpf.DatapathNatEntryFlag(r.Flags); {
	case flags&bpf.DatapathNatEntryFlagNAT_ENTRY_CLOSING != 0, r.TcpFlags[0]&r.TcpFlags[1]&flow.FIN != 0:
		state = flow.Closing
	case flags&replied != 0:
		state = flow.Replied
	}
	if state == flow.Replied && k.Proto == uint8(TCP) && r.TcpFlags[0]&flow.ACK == 0 {
		state = flow.Unreplied
	}
	life := state.Lifetime(k.Proto)
	if state == flow.Closing && timeWaits(r) {
		life = flow.TimeWait
	}
	return clock.Idle(r.Seen) > life
}

// timeWaits reports whether the backend may be in TIME-WAIT, with a port of the
// node's: it is not translation_clean.
func timeWaits(r *bpf.DatapathNatEntry) bool {
	const snat, clean = bpf.DatapathNatEntryFlagNAT_ENTRY_SNAT, bpf.DatapathNatEntryFlagNAT_ENTRY_CLIENT_FIN
	return bpf.DatapathNatEntryFlag(r.Flags)&(snat|clean) == snat && (r.TcpFlags[0]|r.TcpFlags[1])&flow.RST == 0
}

// Collector deletes the entries of Services' flows that are over.
type Collector = flow.Expiry[bpf.DatapathNatEntryKey, bpf.DatapathNatEntry]

// NewCollector makes one. Clients that are pods of this node have shares of the
// table.
func NewCollector(d *bpf.Datapath, log *slog.Logger) *Collector {
	slots := map[bpf.DatapathAddr]uint16{}
	return &Collector{
		Datapath: d, Log: log, Map: d.NatEntries, Rows: "flows of Services", Over: translationOver, Count: new(atomic.Uint64),
		Shares: flow.NewShares(d, bpf.DatapathShareKindSHARE_NAT_ENTRIES, int(d.NatEntries.MaxEntries())),
		Before: func() error {
			clear(slots)
			return bpf.Each(d.Endpoints, func(a *bpf.DatapathAddr, e *bpf.DatapathEndpoint) bool {
				slots[*a] = e.Slot
				return true
			})
		},
		Slot:   func(_ *bpf.DatapathNatEntryKey, r *bpf.DatapathNatEntry) uint16 { return slots[r.Client] },
		Yields: translationYields,
	}
}

// translationYields reports whether an entry makes room where the table is
// filling up, as flow.Clock.Yields does.
func translationYields(clock flow.Clock, k *bpf.DatapathNatEntryKey, r *bpf.DatapathNatEntry) bool {
	const direct = bpf.DatapathNatEntryFlagNAT_ENTRY_DSR
	if clock.Idle(r.Seen) <= flow.ShareYield || bpf.DatapathNatEntryFlag(r.Flags)&direct != 0 {
		return false
	}
	return translationState(r) != flow.Replied || k.Proto == uint8(TCP) && r.TcpFlags[0]&flow.ACK == 0
}

// Translation is a flow that packets are translated for, with names, as lists
// show it.
type Translation struct {
	Client   event.Party    `json:"client"`
	Frontend netip.AddrPort `json:"frontend"`
	Backend  event.Party    `json:"backend"`
	Protocol string         `json:"protocol"`
	// Service is "namespace/name", or the number of one that is no more; empty
	// where another node chose the backend.
	Service string `json:"service,omitempty"`
	// Translated is what the backend sees in the place of the client; invalid
	// where it sees the client.
	Translated netip.AddrPort `json:"translated,omitzero"`
	// Direct: answers don't pass the node that chose the backend.
	Direct bool `json:"direct,omitempty"`
	flow.Course
}

// ServiceNames are the names of Services by number, empty where there is none.
func ServiceNames(txn statedb.ReadTxn, t Tables) func(uint32) string {
	return func(id uint32) string {
		if s, _, ok := t.Services.Get(txn, ByID(id)); ok {
			return s.Key().String()
		}
		return ""
	}
}

// Translations calls fn for each translated flow until it returns false.
func Translations(d *bpf.Datapath, names event.Names, services func(uint32) string, clock flow.Clock, fn func(*Translation) bool) error {
	err := bpf.Each(d.NatEntries, func(k *bpf.DatapathNatEntryKey, r *bpf.DatapathNatEntry) bool {
		return fn(nameTranslation(names, services, clock, k, r))
	})
	if err != nil {
		return fmt.Errorf("read flows of Services: %w", err)
	}
	return nil
}

func nameTranslation(
	names event.Names, services func(uint32) string, clock flow.Clock, k *bpf.DatapathNatEntryKey, r *bpf.DatapathNatEntry,
) *Translation {
	at := func(a bpf.DatapathAddr, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(a.Netip(), bpf.Port(port))
	}
	out := &Translation{
		Client: flow.PartyOf(names, at(r.Client, r.ClientPort)), Frontend: at(r.Frontend, r.FrontendPort),
		Backend: flow.PartyOf(names, at(r.Backend, r.BackendPort)), Protocol: event.Protocol(k.Proto),
		Direct: r.Flags&uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_DSR) != 0,
		Course: flow.Course{
			State: translationState(r), Sent: trafficOf(r, 0), Received: trafficOf(r, 1),
			Age:  flow.Seconds(clock.Age(r.Created)),
			Idle: flow.Seconds(clock.Idle(r.Seen)), Expired: translationOver(clock, k, r),
		},
	}
	if r.Service != 0 {
		if out.Service = services(r.Service); out.Service == "" {
			out.Service = strconv.FormatUint(uint64(r.Service), 10)
		}
	}
	if r.Flags&uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_SNAT) != 0 {
		out.Translated = at(r.Snat, k.Port)
	}
	return out
}

func trafficOf(r *bpf.DatapathNatEntry, side int) flow.Traffic {
	return flow.Traffic{Packets: r.Packets[side], Bytes: r.Bytes[side], TCPFlags: event.TCPFlags(r.TcpFlags[side])}
}

// TableHeader names the columns of TableRow.
func (*Translation) TableHeader() []string {
	return append([]string{"Client", "Frontend", "Backend", "Protocol", "Service", "Translated"}, (*flow.Course)(nil).TableHeader()...)
}

// TableRow is the row as text.
func (t *Translation) TableRow() []string {
	name, translated := t.Service, "-"
	if name == "" {
		name = "-"
	}
	switch {
	case t.Translated.IsValid():
		translated = t.Translated.String()
	case t.Direct:
		translated = "direct"
	}
	return append([]string{t.Client.String(), t.Frontend.String(), t.Backend.String(), t.Protocol, name, translated}, t.Course.TableRow()...)
}
