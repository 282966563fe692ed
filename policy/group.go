package policy

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// Group is a CiliumCIDRGroup: prefixes with a name.
type Group struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	// Prefixes are those of the version that is in force. Of one that is Closed they
	// are those that are understood, and deny rules that name the group mean all that
	// is outside.
	Prefixes []netip.Prefix `json:"prefixes"`
	InForce  Version        `json:"inForce,omitempty"`
	Source   string         `json:"source,omitempty"`
	// Problem is why the newest version was refused; empty if it was not.
	Problem string `json:"problem,omitempty"`
	// Since is when the row became as it is.
	Since time.Time `json:"since"`
}

// Equal reports whether two rows say the same, whenever they began to.
func (g *Group) Equal(o *Group) bool {
	return g.Name == o.Name && g.Source == o.Source && g.Problem == o.Problem && g.InForce == o.InForce &&
		maps.Equal(g.Labels, o.Labels) && slices.Equal(g.Prefixes, o.Prefixes)
}

// Refused is as Object.Refused.
func (g *Group) Refused(newest *Group, problem string, now time.Time) *Group {
	row := *newest
	if g != nil && g.InForce != Closed {
		row = *g
		row.InForce = LastGoodVersion
	}
	row.Problem, row.Since = problem, now
	return &row
}

// TableHeader names the columns of TableRow.
func (*Group) TableHeader() []string {
	return []string{"Name", "Prefixes", "Labels", "State", "Source"}
}

// TableRow is the row as text: of prefixes, which may be many, the number.
func (g *Group) TableRow() []string {
	return []string{g.Name, strconv.Itoa(len(g.Prefixes)), labelText(g.Labels), state(g.Problem, g.InForce), g.Source}
}
