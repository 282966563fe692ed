package cluster

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
)

// offCIDR is a node that follows off-CIDR pod addresses.
type offCIDR struct {
	*OffCIDRPods
	t *testing.T
}

func newOffCIDR(t *testing.T) *offCIDR {
	t.Helper()
	db := statedb.New()
	tables, err1 := NewTables(db)
	o, err2 := NewOffCIDRPods(db, tables)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return &offCIDR{o, t}
}

// follows runs it until the test ends.
func (o *offCIDR) follows() {
	ctx, cancel := context.WithCancel(o.t.Context())
	done := make(chan error)
	go func() { done <- o.Run(ctx) }()
	o.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			o.t.Error(err)
		}
	})
}

func insertRow[Row any](o *offCIDR, t statedb.RWTable[Row], row Row) {
	o.t.Helper()
	txn := o.db.WriteTxn(t)
	defer txn.Commit()
	if _, _, err := t.Insert(txn, row); err != nil {
		o.t.Fatal(err)
	}
}

func (o *offCIDR) node(name string, podCIDRs ...string) {
	o.t.Helper()
	row := &Node{Name: name}
	for _, text := range podCIDRs {
		row.PodCIDRs = append(row.PodCIDRs, netip.MustParsePrefix(text))
	}
	insertRow(o, o.tables.Nodes, row)
}

func (o *offCIDR) pod(name, node string, addresses ...string) *Pod {
	o.t.Helper()
	row := &Pod{Namespace: "x", Name: name, NodeName: node}
	for _, text := range addresses {
		row.Addresses = append(row.Addresses, netip.MustParseAddr(text))
	}
	insertRow(o, o.tables.Pods, row)
	return row
}

// are waits until the rows are these.
func (o *offCIDR) are(when string, want ...string) {
	o.t.Helper()
	var have []string
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		have = nil
		for row := range o.Rows.All(o.db.ReadTxn()) {
			have = append(have, strings.Join(row.TableRow(), " "))
		}
		if strings.Join(have, ", ") == strings.Join(want, ", ") {
			return
		}
	}
	o.t.Fatalf("%s: outside are %v, want %v", when, have, want)
}

func TestOutside(t *testing.T) {
	o := newOffCIDR(t)
	o.follows()
	o.pod("early", "n1", "10.9.0.1")
	o.node("n1", "10.0.1.0/24", "fd00:1::/64")
	o.are("a pod from before its node", "x/early n1 10.9.0.1")
	o.pod("web", "n1", "10.0.1.2", "fd00:1::2")
	o.pod("far", "n2", "10.0.1.7")
	insertRow(o, o.tables.Pods, &Pod{Namespace: "x", Name: "host", NodeName: "n1", HostNetwork: true,
		Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.1")}})
	o.pod("half", "n1", "10.0.1.3", "fd00:9::3")
	o.are("only what is in no podCIDR", "x/early n1 10.9.0.1", "x/half n1 fd00:9::3")

	o.node("n1", "10.0.7.0/24", "fd00:1::/64")
	o.are("another podCIDR", "x/early n1 10.9.0.1", "x/half n1 10.0.1.3 fd00:9::3", "x/web n1 10.0.1.2")
	o.node("n1", "fd00:1::/64")
	o.are("no podCIDR of a family", "x/half n1 fd00:9::3")
	o.node("n1", "10.0.1.0/24", "fd00:1::/64")
	early := o.pod("early", "n1", "10.9.0.2")
	o.are("another address", "x/early n1 10.9.0.2", "x/half n1 fd00:9::3")

	txn := o.db.WriteTxn(o.tables.Pods)
	if _, _, err := o.tables.Pods.Delete(txn, early); err != nil {
		t.Fatal(err)
	}
	txn.Commit()
	insertRow(o, o.tables.Pods, &Pod{Namespace: "x", Name: "half", NodeName: "n1", Phase: "Succeeded",
		Addresses: early.Addresses})
	o.are("a pod that went, and one that ended")
	o.node("n2", "10.0.2.0/24")
	o.are("a pod of a node that came", "x/far n2 10.0.1.7")
}

// TestOutsideKnown: the table is initialized only after those of nodes and pods.
func TestOutsideKnown(t *testing.T) {
	o := newOffCIDR(t)
	txn := o.db.WriteTxn(o.tables.Nodes, o.tables.Pods)
	nodes, pods := o.tables.Nodes.RegisterInitializer(txn, "test"), o.tables.Pods.RegisterInitializer(txn, "test")
	txn.Commit()
	o.follows()
	known := func(want bool, limit time.Duration) {
		t.Helper()
		ok := false
		for end := time.Now().Add(limit); !ok && time.Now().Before(end); time.Sleep(time.Millisecond) {
			ok, _ = o.Rows.Initialized(o.db.ReadTxn())
		}
		if ok != want {
			t.Fatalf("initialized: %v, want %v", ok, want)
		}
	}
	known(false, 20*time.Millisecond)
	txn = o.db.WriteTxn(o.tables.Nodes)
	nodes(txn)
	txn.Commit()
	known(false, 20*time.Millisecond)
	txn = o.db.WriteTxn(o.tables.Pods)
	pods(txn)
	txn.Commit()
	known(true, 5*time.Second)
}
