package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb/reconciler"

	"myelin/cluster"
)

// DefaultWeight is the weight of a backend without one.
const DefaultWeight = 1

// State is whether a backend gets new flows. Existing flows continue in every state.
type State uint8

// The states, the best first.
const (
	Active State = iota
	// Terminating backends get new flows only if none is ready.
	Terminating
	// Quarantined backends fail their health check, or an operator has set the state. They get new flows only if there
	// is no other.
	Quarantined
	// NotReady backends are not ready, and none of the above.
	NotReady
	// Maintenance is set by an operator: no new flows.
	Maintenance
)

func stateNames() []string {
	return []string{"active", "terminating", "quarantined", "not-ready", "maintenance"}
}

func (s State) String() string {
	if names := stateNames(); int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// MarshalText is the state's name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a state's name.
func (s *State) UnmarshalText(text []byte) error {
	i := slices.Index(stateNames(), string(text))
	if i < 0 {
		return fmt.Errorf("%q is none of %s", text, strings.Join(stateNames(), ", "))
	}
	*s = State(i)
	return nil
}

// Backend is an address, port and protocol that flows are sent to. It exists while any Service has the endpoint in any
// state.
type Backend struct {
	// ID is never 0. It stays the same over restarts of the agent while the backend exists. The ID of a backend that
	// was deleted is only reused after all 2^32 were used.
	ID       uint32         `json:"id"`
	Address  netip.AddrPort `json:"address"`
	Protocol Protocol       `json:"protocol"`
	// State is the best of those in Uses.
	State State  `json:"state"`
	Node  string `json:"node,omitempty"`
	Zone  string `json:"zone,omitempty"`
	// Weight is the largest of those in Uses; sets have the weight of their own Service.
	Weight uint16 `json:"weight"`
	// Uses are sorted by Service.
	Uses   []Use             `json:"uses"`
	Status reconciler.Status `json:"status"`
}

// Use is the state of a backend in one Service.
type Use struct {
	Service    cluster.Key `json:"service"`
	State      State       `json:"state"`
	Weight     uint16      `json:"weight"`
	Node, Zone string      `json:"-"`
}

// L4 is the backend's address, port and protocol.
func (b *Backend) L4() L4Addr { return L4Addr{b.Address, b.Protocol} }

// with is the backend after a Service has changed its use, or has ended it if use is nil.
func (b *Backend) with(service cluster.Key, use *Use) *Backend {
	next := *b
	next.Uses = slices.DeleteFunc(slices.Clone(b.Uses), func(u Use) bool { return u.Service == service })
	if use != nil {
		at, _ := slices.BinarySearchFunc(next.Uses, *use, func(a, b Use) int {
			return compareKeys(a.Service, b.Service)
		})
		next.Uses = slices.Insert(next.Uses, at, *use)
	}
	next.State, next.Weight, next.Node, next.Zone = Maintenance, 0, "", ""
	for _, u := range next.Uses {
		next.State, next.Weight = min(next.State, u.State), max(next.Weight, u.Weight)
		if next.Node == "" {
			next.Node = u.Node
		}
		if next.Zone == "" {
			next.Zone = u.Zone
		}
	}
	return &next
}

// TableHeader names the columns of TableRow.
func (*Backend) TableHeader() []string {
	return []string{"ID", "Backend", "State", "Node", "Zone", "Services"}
}

// TableRow is the row as text.
func (b *Backend) TableRow() []string {
	uses := make([]string, len(b.Uses))
	for i, u := range b.Uses {
		uses[i] = u.Service.String()
		if u.Weight != DefaultWeight {
			uses[i] += fmt.Sprintf("(%d)", u.Weight)
		}
	}
	return []string{
		strconv.FormatUint(uint64(b.ID), 10), b.L4().String(), b.State.String(), b.Node, b.Zone,
		strings.Join(uses, " "),
	}
}

// BackendStatus is the address of a row's status, as table.Register wants it.
func BackendStatus(b *Backend) *reconciler.Status { return &b.Status }
