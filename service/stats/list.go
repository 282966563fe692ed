package stats

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/service"
)

// Entry is what a Service's backend has counted, with names, as lists show it.
type Entry struct {
	ID uint32 `json:"id"` // the Service's
	// Service is "namespace/name", or the number of a Service that was deleted. It is empty for all backends without
	// counters of their own, and so is Backend.
	Service string `json:"service"`
	Backend string `json:"backend"` // "10.0.1.2:8080/TCP"
	Node    string `json:"node,omitempty"`
	// State is that of the backend, or Removed.
	State    string  `json:"state,omitempty"`
	Requests Traffic `json:"requests"`
	Replies  Traffic `json:"replies"`
	NewFlows uint64  `json:"newFlows"`
	// Flows is the number of flows now, of a few seconds ago; nil if packets are not translated.
	Flows *int `json:"flows,omitempty"`
}

// Traffic is a direction of flows.
type Traffic struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// removed is the state of backends that are none of the Service any more, and may still have flows.
const removed = "removed"

// Name gives the rows names, and sorts them by those.
func Name(rows []Row, txn statedb.ReadTxn, t service.Tables) []*Entry {
	names := service.Names(txn, t)
	list := make([]*Entry, len(rows))
	for i, r := range rows {
		e := &Entry{ID: r.Service, NewFlows: r.Counters.Flows}
		for side, traffic := range []*Traffic{&e.Requests, &e.Replies} {
			traffic.Packets, traffic.Bytes = r.Packets[side], r.Bytes[side]
		}
		if r.Open >= 0 {
			e.Flows = &r.Open
		}
		if r.Pair != (Pair{}) {
			at := service.L4(r.Addr.Netip(), bpf.Port(r.Port), service.Protocol(r.Proto))
			e.Service, e.Backend = names(r.Service), at.String()
			e.Service = cmp.Or(e.Service, strconv.FormatUint(uint64(r.Service), 10))
			e.State = removed
			if b, _, ok := t.Backends.Get(txn, service.BackendByAddress(at)); ok {
				e.Node = b.Node
				if !r.Held {
					e.State = b.State.String()
				}
			}
		}
		list[i] = e
	}
	slices.SortFunc(list, func(a, b *Entry) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Backend, b.Backend))
	})
	return list
}

// TableHeader names the columns of TableRow.
func (*Entry) TableHeader() []string {
	return []string{"Service", "Backend", "State", "Node", "Requests", "Request bytes", "Replies", "Reply bytes",
		"New flows", "Flows"}
}

// TableRow is the row as text.
func (e *Entry) TableRow() []string {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	flows := ""
	if e.Flows != nil {
		flows = strconv.Itoa(*e.Flows)
	}
	return []string{cmp.Or(e.Service, "others"), e.Backend, e.State, e.Node, number(e.Requests.Packets),
		number(e.Requests.Bytes), number(e.Replies.Packets), number(e.Replies.Bytes), number(e.NewFlows), flows}
}
