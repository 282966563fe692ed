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
	"golang.org/x/sys/unix"

	"myelin/cni"
	"myelin/drop"
	"myelin/internal/durable"
	"myelin/route/tunnel"
	"myelin/status"
)

// earlyFacts are those that an agent has from the moment on when it can be asked.
func (a *agent) earlyFacts(txn statedb.ReadTxn) status.Facts {
	problems, _ := a.source.refused(txn)
	f := status.Facts{
		Config: a.Config, Version: a.version, Kernel: kernelRelease(), Now: time.Now(), Began: a.began,
		Waiting: a.progress.waiting(),
		Reloads: a.restarts.count, ReloadWhy: a.restarts.why, ReloadAt: a.restarts.at,
		Conflist: conflist(a.Config.CNI.ConfPath), RunDir: durable.Probe(a.Config.Myelin.RunDir),
		Listeners: a.health.listening(),
		Unused:    a.source.unusedKinds(),
		Nodes:     rows(a.Cluster.Nodes.All(txn)), Problems: problems, Server: a.source.serverStatus(),
	}
	f.Counts = status.Counts{
		Nodes: len(f.Nodes), Namespaces: a.Cluster.Namespaces.NumObjects(txn), Pods: a.Cluster.Pods.NumObjects(txn),
		Endpoints: map[string]int{},
	}
	return f
}

// status reads what every part knows. It asks the kernel about devices and
// maps, which takes some milliseconds with hundreds of pods. Before the agent
// is ready it says what the start waits for.
func (a *agent) status() (*status.Report, error) {
	txn := a.DB.ReadTxn()
	f := a.earlyFacts(txn)
	if f.Ready = a.readyAfter(); f.Ready == 0 {
		return status.Explain(f), nil
	}
	if err := a.addFacts(txn, &f); err != nil {
		return nil, err
	}
	return status.Explain(f), nil
}

func (a *agent) addFacts(txn statedb.ReadTxn, f *status.Facts) error {
	f.Attach, f.AttachWhy, f.PodLinks = a.Datapath.Attacher.Mode, a.Datapath.Attacher.Why, string(a.endpoints.kind)
	f.PodLinksWhy = a.endpoints.kindWhy
	f.Pools, f.PodCIDRs = a.own.ipam.Dump(), a.own.assignment()
	f.Outside = slices.SortedFunc(maps.Keys(a.own.ipam.Outside()), netip.Addr.Compare)
	f.Tables, f.Wires = a.tableStatus(txn), rows(a.network.node.Wires.All(txn))
	f.Routes, f.NextHops = rows(a.network.routes.Routes.All(txn)), rows(a.network.routes.NextHops.All(txn))
	for e := range a.endpoints.table.All(txn) {
		f.Counts.Endpoints[e.State]++
	}
	f.Services, f.Policies = a.services.status(txn), a.policies.status(txn)
	f.XDP = a.network.xdpStates()
	for _, x := range a.list {
		if x.Status != nil {
			f.Lines = append(f.Lines, x.Status()...)
		}
	}
	f.MTU, _, f.MTUProblem = a.network.routes.MTU()
	if a.Config.Tunneled() {
		f.Tunnel, _, _ = a.network.tunnels.Table.Get(txn, tunnel.ByName(tunnel.DeviceName))
	}
	var err error
	if f.Settings, err = a.Datapath.Settings(); err != nil {
		return fmt.Errorf("read the datapath's settings: %w", err)
	}
	if f.Devices, f.Strays, err = a.endpoints.deviceStatus(txn); err != nil {
		return err
	}
	if f.Maps, err = a.datapath.usages.Read(); err != nil {
		return err
	}
	f.EventsLost, err = drop.Counters{Cpus: a.datapath.Datapath.Cpus}.LostEvents()
	return err
}

// tableStatus counts the rows of every reconciled table, endpoints first.
func (a *agent) tableStatus(txn statedb.ReadTxn) []status.Table {
	list := a.endpoints.counts(txn)
	for _, f := range a.list {
		if f.Counts != nil && f.Name != "endpoints" {
			list = append(list, f.Counts(txn)...)
		}
	}
	return list
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
		if name < cni.ConflistName && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name)) &&
			!strings.HasPrefix(name, ".") {
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
