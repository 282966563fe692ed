package endpoint

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/endpoint/nettest"
	"myelin/endpoint/podlink"
	"myelin/internal/table"
	"myelin/ipam"
)

func TestMain(m *testing.M) { os.Exit(nettest.Main(m)) }

// datapath stands for the reconciler that writes BPF maps: it keeps what the
// kernel would hold, and fails when told to.
type datapath struct {
	mu   sync.Mutex
	rows map[uint16]string // slot to link name
	fail error
}

func (d *datapath) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, e *Endpoint) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.Deleting() {
		delete(d.rows, e.ID)
		return nil
	}
	if d.fail != nil {
		return d.fail
	}
	d.rows[e.ID] = e.LinkName
	return nil
}

func (d *datapath) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, e *Endpoint) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rows[e.ID] == e.LinkName {
		return fmt.Errorf("row of endpoint %d is deleted while the kernel has it", e.ID)
	}
	return nil
}

func (d *datapath) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*Endpoint, statedb.Revision]) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	keep := map[uint16]bool{}
	for e := range rows {
		keep[e.ID] = true
	}
	for id := range d.rows {
		if !keep[id] {
			delete(d.rows, id)
		}
	}
	return nil
}

func (d *datapath) setFail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = err
}

func (d *datapath) ids() []uint16 {
	d.mu.Lock()
	defer d.mu.Unlock()
	var ids []uint16
	for id := range d.rows {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// node is a run directory and a datapath that outlive the agents started on it.
type node struct {
	t        *testing.T
	runDir   string
	config   NodeConfig
	prefixes []netip.Prefix
	kernel   *datapath
	step     func(string) error
	now      func() time.Time
}

func newNode(t *testing.T, prefixes ...string) *node {
	nettest.Root(t)
	n := &node{t: t, runDir: t.TempDir(), kernel: &datapath{rows: map[uint16]string{}},
		config: NodeConfig{MTU: 1400, RouteMTU: 1350}}
	t.Cleanup(func() { dropLinks(t) })
	for _, s := range prefixes {
		p := netip.MustParsePrefix(s)
		n.prefixes = append(n.prefixes, p)
		if p.Addr().Is4() {
			n.config.IPv4, n.config.Gateway4 = true, ipam.Gateway(p)
		} else {
			n.config.IPv6, n.config.Gateway6 = true, ipam.Gateway(p)
		}
	}
	return n
}

// agent is one life of an agent.
type agent struct {
	*Manager
	node *node
	stop func()
}

// start begins a new life and restores. stop ends it as kill -9 would, as far
// as the manager is concerned: nothing is cleaned up.
func (n *node) start() *agent {
	n.t.Helper()
	db := statedb.New()
	endpoints, err := NewTable(db)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := db.Start(); err != nil {
		n.t.Fatal(err)
	}
	allocator, err := ipam.New(n.prefixes...)
	if err != nil {
		n.t.Fatal(err)
	}
	group, start, stopGroup := table.Group(nettest.Quiet())
	if _, err := table.Register(nettest.Quiet(), db, group, endpoints, StatusOf, n.kernel); err != nil {
		n.t.Fatal(err)
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		n.t.Fatal(err)
	}
	driver := podlink.New(handle, podlink.Options{ProcSys: "/proc/sys", SlowPath: true})
	m := NewManager(nettest.Log(n.t), db, endpoints, allocator, driver, Config{
		RunDir: n.runDir, Node: func() NodeConfig { return n.config }, Step: n.step, Now: n.now,
	})
	if err := start(context.Background()); err != nil {
		n.t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(stopGroup(ctx), db.Stop(), handle.Close()); err != nil {
			n.t.Error(err)
		}
	})
	n.t.Cleanup(stop)
	if err := m.Restore(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	return &agent{m, n, stop}
}

// request asks for eth0 of a pod in a new namespace.
func (n *node) request(name string) Request {
	return Request{
		ContainerID: filepath.Base(filepath.Dir(n.runDir)) + "-" + name, IfName: "eth0",
		NetNS: nettest.NewNS(n.t), Namespace: "default", Pod: name, PodUID: "uid-" + name,
	}
}

// links returns the names of all pod links of these tests' host namespace.
func links(t *testing.T) []string {
	t.Helper()
	all, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range all {
		if l.Type() == "veth" {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

// dropLinks removes what a test leaves at once; the kernel would take a moment
// after the pods' namespaces are gone.
func dropLinks(t *testing.T) {
	for _, name := range links(t) {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkDel(l)
		}
		if err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) && !errors.Is(err, unix.ENODEV) {
			t.Errorf("delete %s: %v", name, err)
		}
	}
}

// files returns the names in the directory of state files.
func (n *node) files() []string {
	n.t.Helper()
	entries, err := os.ReadDir(filepath.Join(n.runDir, "endpoints"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// empty fails the test if the agent, the disk or the kernel holds anything.
func (a *agent) empty() {
	a.node.t.Helper()
	t := a.node.t
	if rows := statedb.Collect(a.table.All(a.db.ReadTxn())); len(rows) != 0 {
		t.Errorf("%d rows left", len(rows))
	}
	if f := a.node.files(); len(f) != 0 {
		t.Errorf("files left: %v", f)
	}
	if l := links(t); len(l) != 0 {
		t.Errorf("links left: %v", l)
	}
	for _, u := range a.ipam.Dump() {
		if u.InUse != 0 {
			t.Errorf("addresses left: %v", u.Owners)
		}
	}
	if len(a.slots.owners) != 0 || len(a.slots.taken) != 0 {
		t.Errorf("slots left: %v", a.slots.owners)
	}
	if len(a.locks.held) != 0 {
		t.Errorf("locks left: %v", a.locks.held)
	}
	eventually(t, "datapath rows are gone", func() bool { return len(a.node.kernel.ids()) == 0 })
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if is() {
			return
		}
	}
	t.Errorf("5 s later, not yet: %s", what)
}
