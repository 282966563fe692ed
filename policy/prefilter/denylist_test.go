package prefilter

import (
	"log/slog"
	stdmaps "maps"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/cluster"
	"myelin/internal/table"
	"myelin/policy"
	"myelin/policy/maps"
)

// prefiltered is a node that keeps out the groups bad and worse.
type prefiltered struct {
	*denylist
	t      *testing.T
	nodes  statedb.RWTable[*cluster.Node]
	pods   statedb.RWTable[*cluster.Outside]
	groups statedb.RWTable[*policy.Group]
}

func newPrefiltered(t *testing.T) *prefiltered {
	t.Helper()
	db := statedb.New()
	tables, err1 := cluster.NewTables(db)
	policies, err2 := policy.NewTables(db)
	pods, err4 := cluster.NewOutsideTable(db)
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1, Ipv6: 1, Prefilter: 1}, map[string]uint32{"denylist": 64,
		"denylist_prefixes": 64})
	p, err3 := newDenylist(denylistParams{
		DB: db, Groups: policies.Groups, Nodes: tables.Nodes, OffCIDR: pods, Names: []string{"bad", "worse"},
		Maps: maps.New(d, &bpf.Epochs{Map: d.Epochs}, time.Now), Log: slog.New(slog.DiscardHandler),
	})
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return &prefiltered{p, t, tables.Nodes, pods, policies.Groups}
}

func (p *prefiltered) group(name string, prefixes ...string) {
	p.t.Helper()
	g := &policy.Group{Name: name}
	for _, text := range prefixes {
		g.Prefixes = append(g.Prefixes, netip.MustParsePrefix(text))
	}
	txn := p.DB.WriteTxn(p.groups)
	defer txn.Commit()
	if _, _, err := p.groups.Insert(txn, g); err != nil {
		p.t.Fatal(err)
	}
}

// holds runs a round and compares what the maps have then with prefixes and their lists.
func (p *prefiltered) holds(when string, want map[string]uint32) {
	p.t.Helper()
	if err := p.round(new(table.Watch)); err != nil {
		p.t.Fatalf("%s: %v", when, err)
	}
	if err := p.read(); err != nil { // from the kernel
		p.t.Fatal(err)
	}
	got := map[string]uint32{}
	for prefix, list := range p.have {
		got[prefix.String()] = list
	}
	if !stdmaps.Equal(got, want) {
		p.t.Errorf("%s: got %v, want %v", when, got, want)
	}
}

func (p *prefiltered) row(name string) denylistRow {
	p.t.Helper()
	for r := range p.rows.All(p.DB.ReadTxn()) {
		if r.Name == name {
			return *r
		}
	}
	p.t.Fatalf("%s has no row", name)
	return denylistRow{}
}

func TestPrefilter(t *testing.T) {
	p := newPrefiltered(t)
	p.group("bad", "198.51.100.7/32", "198.51.100.0/24", "2001:db8::/32", "2001:db8::7/128")
	p.holds("one group", map[string]uint32{"198.51.100.7/32": 1, "198.51.100.0/24": 1, "2001:db8::/32": 1,
		"2001:db8::7/128": 1})
	if r := p.row("worse"); r.Problem == "" {
		t.Errorf("a group that isn't there is no problem: %+v", r)
	}
	p.group("worse", "198.51.100.7/32", "203.0.113.0/24")
	p.holds("both groups, the first one counts", map[string]uint32{"198.51.100.7/32": 1, "198.51.100.0/24": 1,
		"2001:db8::/32": 1, "2001:db8::7/128": 1, "203.0.113.0/24": 2})
	p.group("bad", "10.0.0.0/8")
	p.holds("another list", map[string]uint32{"10.0.0.0/8": 1, "198.51.100.7/32": 2, "203.0.113.0/24": 2})

	txn := p.DB.WriteTxn(p.nodes)
	node := &cluster.Node{Name: "n", Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.1"),
		netip.MustParseAddr("192.0.2.1")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}
	_, _, err := p.nodes.Insert(txn, node)
	txn.Commit()
	if err != nil {
		t.Fatal(err)
	}
	p.holds("nodes, their gateways and podCIDRs may come in", map[string]uint32{"10.0.0.0/8": 1, "10.9.0.1/32": 0,
		"10.1.0.0/24": 0, "10.1.0.1/32": 0, "198.51.100.7/32": 2, "203.0.113.0/24": 2})
	if r := p.row("bad"); r != (denylistRow{Name: "bad", Prefixes: 1, Own: 3}) {
		t.Errorf("got %+v", r)
	}
	txn = p.DB.WriteTxn(p.pods)
	_, _, err = p.pods.Insert(txn, &cluster.Outside{Node: "n",
		Addresses: []netip.Addr{netip.MustParseAddr("10.2.0.9")}})
	txn.Commit()
	if err != nil {
		t.Fatal(err)
	}
	p.holds("pods in no podCIDR may come in", map[string]uint32{"10.0.0.0/8": 1, "10.9.0.1/32": 0, "10.1.0.0/24": 0,
		"10.1.0.1/32": 0, "10.2.0.9/32": 0, "198.51.100.7/32": 2, "203.0.113.0/24": 2})
	next := &denylist{denylistParams: p.denylistParams, rows: p.rows}
	next.Names = []string{"worse"}
	p.denylist = next
	p.holds("an agent after this one, with one group less", map[string]uint32{"198.51.100.7/32": 1,
		"203.0.113.0/24": 1})
}

func TestPrefilterIsFull(t *testing.T) {
	p := newPrefiltered(t)
	var many []string
	for i := range 65 {
		many = append(many, netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}).String()+"/32")
	}
	p.group("bad", many...)
	if err := p.round(new(table.Watch)); err == nil {
		t.Fatal("65 rows fit into a map of 64")
	}
	if r := p.row("bad"); r.Problem == "" {
		t.Error("the group says nothing")
	}
	p.group("bad", many[:64]...)
	if err := p.round(new(table.Watch)); err != nil || p.row("bad").Problem != "" {
		t.Errorf("what fits is not in force: %v, %+v", err, p.row("bad"))
	}
}
