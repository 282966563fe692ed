// Package prefilter is the feature that drops packets from blocked CIDRs where
// they arrive on a wire, before anything else looks at them.
package prefilter

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cilium/statedb"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/policy"
	"myelin/policy/maps"
)

// maxEntries limits the blocked addresses, and the blocked prefixes. Entries
// that are not in use need no memory.
const maxEntries = 2 << 20

// Params are what Feature needs beyond the node.
type Params struct {
	// Groups are the CiliumCIDRGroups; called when the feature starts.
	Groups func() statedb.Table[*policy.Group]
	// XDP is the mode of XDP by name of the wire.
	XDP func() map[string]bpf.XDPState
}

type prefilter struct {
	*feature.Node
	Params
	rows statedb.Table[*denylistRow] // nil if off
}

// Feature returns the prefilter of a node, which is on if
// myelin.policy.prefilter names groups.
func Feature(n *feature.Node, p Params) *feature.Feature {
	f := &prefilter{Node: n, Params: p}
	return &feature.Feature{
		Name: "prefilter", Start: f.start, Settings: f.settings, Entries: f.entries, XDP: f.on, Commands: commands(),
		Status: func() []feature.Status { return []feature.Status{f.status()} },
		Rights: []feature.Right{
			{Group: "cilium.io", Resources: []string{"ciliumcidrgroups"}, Verbs: []string{"list", "watch"}},
		},
	}
}

func (f *prefilter) on() bool { return len(f.Config.Prefilter.Groups) > 0 }

func (f *prefilter) settings(s *bpf.Settings) {
	if f.on() {
		s.Prefilter = 1
	}
}

func (f *prefilter) entries() map[string]uint32 {
	n := uint32(1)
	if f.on() {
		n = maxEntries
	}
	return map[string]uint32{"denylist": n, "denylist_prefixes": n}
}

func (f *prefilter) start(context.Context) error {
	if !f.on() {
		return nil
	}
	d, err := newDenylist(denylistParams{
		DB: f.DB, Groups: f.Groups(), Nodes: f.Cluster.Nodes, OffCIDR: f.Outside,
		Names: f.Config.Prefilter.Groups, Maps: maps.New(f.Datapath, f.Epochs, time.Now), Log: f.Log,
	})
	if err != nil {
		return err
	}
	f.rows = d.rows
	f.Go("prefilter", d.run)
	return nil
}

func (f *prefilter) status() feature.Status {
	names := f.Config.Prefilter.Groups
	if f.rows == nil {
		return statusOf(names, nil, nil)
	}
	return statusOf(names, statedb.Collect(f.rows.All(f.DB.ReadTxn())), f.XDP())
}

// statusOf is the line of `myelin status` for the groups that names has. xdp is
// the mode of XDP by wire.
func statusOf(names []string, rows []*denylistRow, xdp map[string]bpf.XDPState) feature.Status {
	s := feature.Status{
		Name: "Prefilter", State: feature.Off, Chosen: "off", Why: "everybody may come in by a wire",
		Wanted: "myelin.policy.prefilter: " + cmp.Or(strings.Join(names, " "), "none"),
	}
	if len(names) == 0 {
		return s
	}
	prefixes := 0
	for _, row := range rows {
		prefixes += row.Prefixes
		if row.Problem != "" {
			s.Problems = append(s.Problems, row.Name+": "+row.Problem)
		}
	}
	s.State, s.Why = feature.OK, "before all else, and whatever is asked for"
	s.Cost = "two look-ups for each packet of a wire"
	by := "tc"
	for _, x := range xdp {
		if by = "XDP"; x.Mode == bpf.XDPNone {
			by = "tc, and XDP where a wire has it"
			break
		}
	}
	s.Chosen = fmt.Sprintf("%s of %s, by %s", feature.Plural(prefixes, "CIDR"), feature.Plural(len(rows), "group"), by)
	if len(s.Problems) > 0 || len(rows) == 0 {
		s.State = feature.Broken
	}
	return s
}

// commands are those that show the denylist.
func commands() []feature.Command {
	return []feature.Command{
		{Name: "prefilter", Short: "Inspect the denylist", Views: []feature.View{
			{Name: "list", Table: "prefilter",
				Short: "List the CiliumCIDRGroups of myelin.policy.prefilter, and which of their prefixes are blocked"},
		}},
	}
}
