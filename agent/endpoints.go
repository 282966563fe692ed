package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"

	"myelin/agent/feature"
	"myelin/bigtcp"
	"myelin/bpf"
	"myelin/cluster"
	"myelin/endpoint"
	"myelin/endpoint/podlink"
	"myelin/flow"
)

// endpoints is the feature that owns the pods of this node.
type endpoints struct {
	*feature.Node
	network    *network
	own        *ownNode
	identities *identities
	policies   *policies
	bigTCP     *bigtcp.Feature

	table statedb.RWTable[*endpoint.Endpoint]
	// restorable is called when the manager has registered that it will restore
	// endpoints: until then the table must not count as complete.
	restorable func(statedb.WriteTxn)
	host       *netlink.Handle
	manager    *endpoint.Manager

	kind    podlink.Kind // of new pods' links
	kindWhy string       // why it is not the one that is configured
}

func (ep *endpoints) feature() *feature.Feature {
	return &feature.Feature{
		Name: "endpoints", Tables: ep.tables, Start: ep.start, Stop: ep.stop, Settings: ep.settings,
		Lists: ep.lists, Counts: ep.counts, Metrics: ep.metrics,
		Checks: endpoint.Checks(), Commands: ep.commands(),
	}
}

func (ep *endpoints) tables() error {
	var err error
	if ep.table, err = endpoint.NewTable(ep.DB); err != nil {
		return err
	}
	txn := ep.DB.WriteTxn(ep.table)
	defer txn.Commit()
	ep.restorable = ep.table.RegisterInitializer(txn, "agent")
	return nil
}

// settings chooses the kind of new pods' links. Links of older pods keep theirs.
func (ep *endpoints) settings(s *bpf.Settings) {
	ep.kind, ep.kindWhy = podlink.Veth, ""
	mode := ep.Config.BPF.DatapathMode
	if mode == "auto" {
		mode = string(podlink.Netkit)
	}
	if mode != string(podlink.Veth) {
		if err := podlink.ProbeNetkit(); err != nil {
			ep.kindWhy = err.Error()
		} else {
			ep.kind = podlink.Kind(mode)
		}
	}
	older, err := endpoint.HasNetkit(ep.Config.Myelin.RunDir)
	if err != nil {
		ep.Log.Error("kinds of pod links are not known", "error", err)
	}
	s.Netkit = flag(ep.kind.IsNetkit() || older || err != nil)
}

func (ep *endpoints) counts(txn statedb.ReadTxn) []feature.TableCount {
	return []feature.TableCount{feature.Count(txn, ep.table, endpoint.StatusOf)}
}

func (ep *endpoints) stop() error {
	if ep.manager != nil {
		ep.manager.Close() // uses ep.host
	}
	if ep.host != nil {
		ep.host.Close()
	}
	return nil
}

func (ep *endpoints) metrics(s feature.Sink) {
	states := map[string]int{}
	for e := range ep.table.All(ep.DB.ReadTxn()) {
		states[e.State]++
	}
	for state, n := range states {
		s.Gauge("myelin_endpoint_state", "Endpoints of this node by state.", float64(n),
			prometheus.Labels{"endpoint_state": state})
	}
	s.Gauge("myelin_endpoint", "Endpoints of this node.", float64(ep.table.NumObjects(ep.DB.ReadTxn())), nil)
	links, err := ep.host.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		s.Failed("myelin_stray_links", err)
		return
	}
	s.Gauge("myelin_stray_links", "Pod links that belong to no endpoint, for their state was lost.",
		float64(len(ep.manager.Strays(links))), nil)
}

// start restores the pods of the agent before. The reconciler is
// registered first, since Restore deletes what a crash has left.
func (ep *endpoints) start(ctx context.Context) error {
	var err error
	if ep.host, err = netlink.NewHandle(); err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	purger := flow.NewPurger(ep.Datapath, ep.Log)
	ep.Go("rows-of-gone-pods", purger.Run)
	kernel := &endpoint.Kernel{
		Datapath: ep.Datapath, Epochs: ep.Epochs, Follow: ep.Config.InspectsHost(), Netns: endpoint.LinkNetns(ep.host),
		Administers: ep.administers, Gone: purger.Forget,
	}
	if ep.policies.engine != nil {
		kernel.Hold = ep.policies.engine.Hold
	}
	veth := podlink.New(ep.host, podlink.Options{ProcSys: ep.Config.Myelin.SysctlRoot, SlowPath: true})
	ep.manager = endpoint.NewManager(ep.Log, ep.DB, ep.table, ep.own.ipam, veth, endpoint.Config{
		RunDir: ep.Config.Myelin.RunDir, Node: ep.own.podConfig, Ready: ep.podReady, Elsewhere: ep.addressElsewhere,
	})
	txn := ep.DB.WriteTxn(ep.table)
	ep.restorable(txn)
	txn.Commit()
	if err := endpoint.Reconcile(ep.Log, ep.DB, ep.Group, ep.table, kernel); err != nil {
		return err
	}
	if err := ep.manager.Restore(ctx); err != nil {
		return err
	}
	if _, err := ep.manager.Sweep(ep.host); err != nil {
		ep.Log.Error("pod links of unknown pods may be left", "error", err)
	}
	ep.Go("pod-links", ep.manager.Run)
	return ep.settle(ctx)
}

// podOf is "namespace/name" of the pod whose endpoint has the ID, the ID where
// there is none.
func (ep *endpoints) podOf(slot uint16) string {
	if slot == 0 {
		return ""
	}
	for e := range ep.table.All(ep.DB.ReadTxn()) {
		if e.ID == slot && e.Pod != "" {
			return e.Namespace + "/" + e.Pod
		}
	}
	return strconv.Itoa(int(slot))
}

// addressElsewhere reports whether another Pod has the address, which no endpoint
// has: one that was there before Myelin was the node's network, or one of another
// node, whose podCIDR it was.
func (ep *endpoints) addressElsewhere(addr netip.Addr, namespace, pod string) bool {
	for p := range ep.Cluster.Pods.List(ep.DB.ReadTxn(), cluster.PodsByAddress(addr)) {
		if p.Key() != (cluster.Key{Namespace: namespace, Name: pod}) {
			return true
		}
	}
	return false
}

// podReady returns when a new pod can be reached, and its policies hold.
func (ep *endpoints) podReady(ctx context.Context, e *endpoint.Endpoint) error {
	if err := ep.own.saveAssignment(); err != nil {
		return err
	}
	if err := ep.network.routes.WaitPod(ctx, e.LinkName, e.Addresses()...); err != nil {
		return err
	}
	ep.bigTCP.WaitPod(ctx, e.LinkName)
	if ep.policies.engine == nil {
		return nil
	}
	return ep.policies.engine.WaitPod(ctx, e.ID)
}
