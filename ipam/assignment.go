package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Assignment is the row that says where this node's pods get their addresses
// from. There is one.
type Assignment struct {
	Node string `json:"node"`
	// InForce are the podCIDRs that new pods get addresses from, in this order.
	InForce []netip.Prefix `json:"inForce"`
	// Wanted are those of the Node object, of families that are on.
	Wanted []netip.Prefix `json:"wanted"`
	// Gateway4 and Gateway6 are what all pods of the node have as their gateway.
	// They stay while a pod lives, for the datapath answers for one gateway of a
	// family only, and a pod's routes are not changed behind its back.
	Gateway4 netip.Addr `json:"gateway4"`
	Gateway6 netip.Addr `json:"gateway6"`
	// Problem says what is wrong with Wanted; empty if nothing is.
	Problem string `json:"problem,omitempty"`
	// Since is when the row changed last.
	Since time.Time `json:"since"`
}

// Equal compares all but the time.
func (a *Assignment) Equal(o *Assignment) bool {
	return a.Node == o.Node && slices.Equal(a.InForce, o.InForce) && slices.Equal(a.Wanted, o.Wanted) &&
		a.Gateway4 == o.Gateway4 && a.Gateway6 == o.Gateway6 && a.Problem == o.Problem
}

// Gateways are those that are valid, IPv4 first.
func (a *Assignment) Gateways() []netip.Addr {
	return slices.DeleteFunc([]netip.Addr{a.Gateway4, a.Gateway6}, func(g netip.Addr) bool { return !g.IsValid() })
}

// Fresh are the gateways that the node would have with no pod on it.
func (a *Assignment) Fresh() (v4, v6 netip.Addr) {
	return fresh(a.Gateway4, a.InForce, netip.Addr.Is4), fresh(a.Gateway6, a.InForce, netip.Addr.Is6)
}

// fresh keeps a gateway that is one of inForce, so that a change of their order
// is none.
func fresh(have netip.Addr, inForce []netip.Prefix, family func(netip.Addr) bool) netip.Addr {
	first := netip.Addr{}
	for _, p := range inForce {
		g := Gateway(p)
		if g == have {
			return have
		}
		if family(g) && !first.IsValid() {
			first = g
		}
	}
	if !first.IsValid() {
		return have
	}
	return first
}

// Other is what another node has.
type Other struct {
	Node     string
	PodCIDRs []netip.Prefix
}

// Question is what Decide answers.
type Question struct {
	Node   string
	Wanted []netip.Prefix // of the Node object, of families that are on; none if it is gone
	Others []Other
	// Before is what was decided last, nil if nothing was.
	Before *Assignment
	// Pods: there may be pods that have the gateways of Before.
	Pods bool
}

// Decide says what is in force from now on: what is wanted, unless another node
// has it; then what was before. It is a pure function.
//
// A node whose podCIDRs vanish hands nothing out: the controller that removed them may give
// them to another node.
func Decide(q Question) *Assignment {
	a := &Assignment{Node: q.Node, Wanted: q.Wanted, InForce: q.Wanted, Problem: conflict(q)}
	before := q.Before
	if before == nil {
		before = &Assignment{}
	}
	switch {
	case len(q.Wanted) == 0:
		a.Problem = fmt.Sprintf("Node %s has no podCIDR any more: pods keep their addresses, and new ones get none",
			q.Node)
	case a.Problem != "" && len(before.InForce) > 0:
		a.InForce = before.InForce
		a.Problem += fmt.Sprintf(": %s stays in force", join(a.InForce))
	}
	a.Gateway4, a.Gateway6 = before.Gateway4, before.Gateway6
	v4, v6 := a.Fresh()
	if !q.Pods || !a.Gateway4.IsValid() {
		a.Gateway4 = v4
	}
	if !q.Pods || !a.Gateway6.IsValid() {
		a.Gateway6 = v6
	}
	return a
}

// conflict names the first podCIDR that another node has, too.
func conflict(q Question) string {
	for _, p := range q.Wanted {
		for _, o := range q.Others {
			for _, other := range o.PodCIDRs {
				if p.Overlaps(other) {
					return fmt.Sprintf("podCIDR %s of Node %s overlaps %s of Node %s", p, q.Node, other, o.Node)
				}
			}
		}
	}
	return ""
}

// TableHeader names the columns of TableRow.
func (*Assignment) TableHeader() []string {
	return []string{"Node", "InForce", "Wanted", "Gateways", "Since", "Problem"}
}

// TableRow is the row as text.
func (a *Assignment) TableRow() []string {
	return []string{a.Node, join(a.InForce), join(a.Wanted), join(a.Gateways()), a.Since.UTC().Format(time.RFC3339),
		a.Problem}
}

func join[T fmt.Stringer](list []T) string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = v.String()
	}
	return strings.Join(texts, " ")
}

func byNode() statedb.Index[*Assignment, string] {
	return statedb.Index[*Assignment, string]{
		Name:       "node",
		FromObject: func(a *Assignment) index.KeySet { return index.NewKeySet(index.String(a.Node)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}
}

// ByNode queries the row of a node.
func ByNode(name string) statedb.Query[*Assignment] {
	i := byNode()
	return i.Query(name)
}

// NewTable makes the table of podCIDRs in force in db.
func NewTable(db *statedb.DB) (statedb.RWTable[*Assignment], error) {
	t, err := statedb.NewTable(db, "podcidrs", byNode())
	if err != nil {
		return nil, fmt.Errorf("make table of podCIDRs: %w", err)
	}
	return t, nil
}
