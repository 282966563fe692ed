package agent

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/cni"
	"myelin/durable"
	"myelin/endpoint"
	"myelin/node"
	"myelin/route"
	"myelin/status"
	"myelin/tunnel"
)

// earlyFacts are those that an agent has from the moment on when it can be asked.
func (a *Agent) earlyFacts(txn statedb.ReadTxn) status.Facts {
	problems, _ := a.refused(txn)
	f := status.Facts{
		Config: a.config, Version: a.version, Kernel: kernelRelease(), Now: time.Now(), Began: a.began, Waiting: a.progress.waiting(),
		Reloads: a.lives.reloads, ReloadWhy: a.lives.why, ReloadAt: a.lives.at,
		Conflist: conflist(a.config.CNI.ConfPath), RunDir: durable.Probe(a.config.Myelin.RunDir),
		Listeners: a.health.listening(),
		Unused:    a.unusedKinds(),
		Nodes:     rows(a.cluster.Nodes.All(txn)), Problems: problems, Server: a.serverStatus(),
	}
	f.Counts = status.Counts{
		Nodes: len(f.Nodes), Namespaces: a.cluster.Namespaces.NumObjects(txn), Pods: a.cluster.Pods.NumObjects(txn),
		Endpoints: map[string]int{},
	}
	return f
}

// Status reads what every part knows. It asks the kernel about devices and
// maps, which takes some milliseconds with hundreds of pods. Before the agent
// is ready it says what the start waits for.
func (a *Agent) Status() (*status.Report, error) {
	txn := a.db.ReadTxn()
	f := a.earlyFacts(txn)
	if f.Ready = a.readyAfter(); f.Ready == 0 {
		return status.Explain(f), nil
	}
	if err := a.addFacts(txn, &f); err != nil {
		return nil, err
	}
	return status.Explain(f), nil
}

func (a *Agent) addFacts(txn statedb.ReadTxn, f *status.Facts) error {
	f.Attach, f.AttachWhy, f.PodLinks = a.datapath.Attacher.Mode, a.datapath.Attacher.Why, "veth"
	f.Pools, f.PodCIDRs = a.ipam.Dump(), a.assignment()
	f.Outside = slices.SortedFunc(maps.Keys(a.ipam.Outside()), netip.Addr.Compare)
	f.Tables, f.Wires = a.tableStatus(txn), rows(a.node.Wires.All(txn))
	f.Routes, f.NextHops = rows(a.routes.Routes.All(txn)), rows(a.routes.NextHops.All(txn))
	for e := range a.endpoints.All(txn) {
		f.Counts.Endpoints[e.State]++
	}
	f.Conntrack = a.conntrack()
	f.Services, f.Policies = a.serviceStatus(txn), a.policyStatus(txn)
	f.XDP = map[string]bpf.XDPState{}
	for _, w := range f.Wires {
		if !w.Tunnel {
			f.XDP[w.Name] = a.datapath.Attacher.XDP(w.Name)
		}
	}
	f.MTU, _, f.MTUProblem = a.routes.MTU()
	if a.tunneled() {
		f.Tunnel, _, _ = a.tunnels.Table.Get(txn, tunnel.ByName(tunnel.DeviceName))
	}
	var err error
	if f.Settings, err = a.datapath.Settings(); err != nil {
		return fmt.Errorf("read the datapath's settings: %w", err)
	}
	if f.Devices, f.Strays, err = a.deviceStatus(txn); err != nil {
		return err
	}
	if f.Maps, err = a.usages.Read(); err != nil {
		return err
	}
	f.EventsLost, err = a.eventsLost()
	return err
}

// tableStatus counts the rows of every table that a reconciler works on.
func (a *Agent) tableStatus(txn statedb.ReadTxn) []status.Table {
	list := []status.Table{
		count(txn, a.endpoints, endpoint.StatusOf),
		count(txn, a.routes.Addresses, func(r *route.Address) *reconciler.Status { return &r.Status }),
		count(txn, a.routes.Routes, func(r *route.Route) *reconciler.Status { return &r.Status }),
		count(txn, a.routes.Neighbours, func(r *route.Neighbour) *reconciler.Status { return &r.Status }),
		count(txn, a.routes.NextHops, func(r *route.NextHop) *reconciler.Status { return &r.Status }),
		count(txn, a.routes.Sysctls, func(r *route.Sysctl) *reconciler.Status { return &r.Status }),
		count(txn, a.tunnels.Table, func(r *tunnel.Tunnel) *reconciler.Status { return &r.Status }),
		count(txn, a.node.Addresses, func(r *node.Address) *reconciler.Status { return &r.Status }),
		count(txn, a.node.Wires, func(r *node.Wire) *reconciler.Status { return &r.Status }),
		count(txn, a.node.Prefixes, func(r *node.Prefix) *reconciler.Status { return &r.Status }),
	}
	return append(list, a.serviceTables(txn)...)
}

func count[Row any](txn statedb.ReadTxn, t statedb.Table[*Row], of func(*Row) *reconciler.Status) status.Table {
	return status.CountTable(t.Name(), t.All(txn), of)
}

// rows lists a table; rows are immutable.
func rows[Row any](all func(func(*Row, statedb.Revision) bool)) (list []*Row) {
	for row := range all {
		list = append(list, row)
	}
	return list
}

// conflist looks whether the runtime takes our file: of those with the endings
// that libcni reads, the first by name counts.
func conflist(dir string) status.Conflist {
	c := status.Conflist{Path: filepath.Join(dir, cni.ConflistName)}
	if _, err := os.Stat(c.Path); err != nil {
		c.Error = err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		c.Error = errors.Join(c.Error, err)
	}
	for _, e := range entries {
		name := e.Name()
		if name < cni.ConflistName && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name)) && !strings.HasPrefix(name, ".") {
			c.Before = append(c.Before, name)
		}
	}
	return c
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
