package agent

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/cluster"
	"myelin/cni"
	"myelin/endpoint"
	"myelin/internal/durable"
	"myelin/internal/table"
	"myelin/ipam"
)

// ownNode is the feature that follows this node's own object: its podCIDRs and
// the allocator of their addresses. Without a cluster it makes the object of
// the machine's addresses.
type ownNode struct {
	*feature.Node
	progress  *progress
	source    *clusterSource
	network   *network
	endpoints *endpoints
	services  *services

	ipam     *ipam.Allocator
	podCIDRs statedb.RWTable[*ipam.Assignment]
	assigned func(statedb.WriteTxn) // called with the first row of podCIDRs
	unsaved  atomic.Bool            // the row of podCIDRs is in no file
	// machineKnown is called with the first Node that is made of the machine.
	machineKnown func(statedb.WriteTxn)
}

func (o *ownNode) feature() *feature.Feature {
	return &feature.Feature{
		Name: "own node", Tables: o.tables, Start: o.findSelf, Settings: o.settings, Metrics: o.metrics,
		Rights: []feature.Right{
			{Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}},
			{Group: "cilium.io", Resources: []string{"ciliumnodes"}, Verbs: []string{"list", "watch"}},
		},
	}
}

func (o *ownNode) tables() error {
	var err error
	if o.podCIDRs, err = ipam.NewTable(o.DB); err != nil {
		return err
	}
	txn := o.DB.WriteTxn(o.podCIDRs)
	defer txn.Commit()
	o.assigned = o.podCIDRs.RegisterInitializer(txn, "own node")
	return nil
}

func (o *ownNode) settings(s *bpf.Settings) {
	pods := o.podConfig()
	s.Gateway4, s.Gateway6 = bpf.Addr(pods.Gateway4), bpf.Addr(pods.Gateway6)
}

func (o *ownNode) metrics(s feature.Sink) {
	for _, u := range o.ipam.Dump() {
		labels := prometheus.Labels{"family": "ipv6", "prefix": u.Prefix.String()}
		if u.Prefix.Addr().Is4() {
			labels["family"] = "ipv4"
		}
		s.Gauge("myelin_ip_addresses", "Addresses of a podCIDR that pods have.", float64(u.InUse), labels)
		s.Gauge("myelin_ipam_capacity", "Addresses of a podCIDR that pods can have.", float64(u.Capacity), labels)
	}
	s.Gauge("myelin_ipam_addresses_outside", "Addresses that pods have and that are in no podCIDR any more.",
		float64(len(o.ipam.Outside())), nil)
}

// findSelf waits for this node's own object: without its podCIDRs there is
// nothing to begin with. From then on it follows them.
func (o *ownNode) findSelf(ctx context.Context) error {
	if o.Config.LoadBalancer.Standalone {
		return o.findMachine(ctx)
	}
	before, err := ipam.Load(o.podCIDRFile())
	if err != nil {
		o.Log.Error("the podCIDRs in force before are not known", "error", err)
	}
	files, err := filepath.Glob(filepath.Join(o.Config.Myelin.RunDir, "endpoints", "*.json"))
	if err != nil {
		return fmt.Errorf("look for endpoints: %w", err)
	}
	if o.ipam, err = ipam.New(); err != nil {
		return err
	}
	for {
		var w table.Watch
		why, help := o.seeSelf(&w, before, len(files) > 0)
		if why == "" && help == "" && o.assignment() != nil {
			break
		}
		if o.progress.waitsFor(why, help) {
			o.Log.Warn("waiting for this node's object", "node", o.Config.Myelin.NodeName, "problem", why, "help", help)
		}
		if err := w.Wait(ctx); err != nil {
			return fmt.Errorf("wait for Node %s: %w", o.Config.Myelin.NodeName, err)
		}
	}
	o.Group.Add(job.OneShot("podcidrs", func(ctx context.Context, health cell.Health) error {
		return table.Loop(ctx, 0, func(w *table.Watch) error {
			o.followSelf(w, health)
			return nil
		})
	}))
	return nil
}

// seeSelf writes the first row of podCIDRs in force, or says what is missing
// and what would help; both are empty while the sources have not told all.
func (o *ownNode) seeSelf(w *table.Watch, before *ipam.Assignment, pods bool) (why, help string) {
	txn := o.DB.ReadTxn()
	nodes, nodesChanged := o.Cluster.Nodes.AllWatch(txn)
	problems, problemsChanged := o.source.refused(txn)
	known := w.Initialized(txn, o.Cluster.Nodes)
	w.Add(nodesChanged, problemsChanged)
	q := o.question(nodes)
	q.Before, q.Pods = before, pods
	if len(q.Wanted) > 0 {
		next := ipam.Decide(q)
		if err := o.ipam.Set(next.InForce, next.Gateways()...); err != nil {
			return fmt.Sprintf("Node %s: %v", q.Node, err), "correct spec.podCIDRs of the Node"
		}
		if err := o.assign(next); err != nil {
			return err.Error(), "look at the file system of myelin.runDir"
		}
		return "", ""
	}
	if why, help = o.source.notTold(w); why != "" {
		return why, help
	}
	return o.missing(txn, problems, known)
}

// question is about the podCIDRs of this node as its object and those of other nodes have them.
func (o *ownNode) question(nodes func(func(*cluster.Node, statedb.Revision) bool)) ipam.Question {
	q := ipam.Question{Node: o.Config.Myelin.NodeName}
	for n := range nodes {
		if n.Name == q.Node {
			q.Wanted = o.familiesOn(n.PodCIDRs)
		} else {
			q.Others = append(q.Others, ipam.Other{Node: n.Name, PodCIDRs: n.PodCIDRs})
		}
	}
	return q
}

// familiesOn leaves out prefixes of a family that is off.
func (o *ownNode) familiesOn(all []netip.Prefix) (list []netip.Prefix) {
	for _, p := range all {
		if p.Addr().Is4() && o.Config.IPv4.Enabled || p.Addr().Is6() && o.Config.IPv6.Enabled {
			list = append(list, p)
		}
	}
	return list
}

// missing says why the node has no podCIDRs, in the words of whoever would
// have to change something.
func (o *ownNode) missing(txn statedb.ReadTxn, problems []*cluster.Problem, known bool) (why, help string) {
	name := o.Config.Myelin.NodeName
	n, _, found := o.Cluster.Nodes.Get(txn, cluster.NodeByName(name))
	for _, p := range problems {
		if !found && p.Object == "Node "+name {
			return "the Node object was refused: " + p.Error(), "correct it"
		}
	}
	switch {
	case found && len(n.PodCIDRs) == 0 && o.Config.PodCIDRsFromPool():
		return fmt.Sprintf("CiliumNode %s has no podCIDRs yet, or there is none", name),
			"look at myelin-operator, which gives nodes podCIDRs in ipam.mode cluster-pool, and at " +
				"status.ipam.operator-status of the CiliumNode"
	case found && len(n.PodCIDRs) == 0:
		return fmt.Sprintf("Node %s (%s) has no podCIDRs", name, n.Source), "set spec.podCIDRs of the Node"
	case found:
		return fmt.Sprintf("Node %s (%s) has no podCIDR of a family that is on", name, n.Source),
			"set spec.podCIDRs of the Node, or ipv4.enabled or ipv6.enabled of the agent"
	case !known:
		return o.noManifests(problems)
	}
	seen := "none"
	var names []string
	for n := range o.Cluster.Nodes.All(txn) {
		names = append(names, n.Name)
	}
	if len(names) > 0 {
		seen = strings.Join(names[:min(len(names), fewNames)], ", ")
	}
	if more := len(names) - fewNames; more > 0 {
		seen += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("no Node object named %s in %s; seen: %s", name, o.source.place(), seen),
		fmt.Sprintf("add a Node %s with spec.podCIDRs, or set myelin.nodeName to one that is there", name)
}

// noManifests is why nothing is known yet: the directory can't be read. An object that is rejected keeps no other one
// from being known.
func (o *ownNode) noManifests(problems []*cluster.Problem) (why, help string) {
	if o.source.manifests == nil {
		return "", ""
	}
	for _, p := range problems {
		if p.File == o.source.manifests.Dir {
			return "manifests: " + p.Error(), "make the directory, or set myelin.manifests to the right one"
		}
	}
	return "", ""
}

// fewNames of nodes are in a message.
const fewNames = 5

func (o *ownNode) podCIDRFile() string { return filepath.Join(o.Config.Myelin.RunDir, "podcidrs.json") }

// assignment is the row of podCIDRs in force, nil before there is one.
func (o *ownNode) assignment() *ipam.Assignment {
	row, _, _ := o.podCIDRs.Get(o.DB.ReadTxn(), ipam.ByNode(o.Config.Myelin.NodeName))
	return row
}

// assign puts a row in force: in the file first, so that a crash does not
// forget which gateways pods have. Where there is no room for the file, the row
// is in force all the same, and no pod is added before it is saved.
func (o *ownNode) assign(row *ipam.Assignment) error {
	row.Since = time.Now()
	err := row.Save(o.podCIDRFile())
	full := durable.Full(err)
	if err != nil && !full {
		return err
	}
	if full {
		o.Log.Warn("podCIDRs in force are not saved yet", "error", err)
	}
	o.unsaved.Store(full)
	txn := o.DB.WriteTxn(o.podCIDRs)
	defer txn.Abort()
	if _, _, err := o.podCIDRs.Insert(txn, row); err != nil {
		return fmt.Errorf("write podCIDRs in force: %w", err)
	}
	if o.assigned != nil {
		o.assigned(txn)
		o.assigned = nil
	}
	txn.Commit()
	return nil
}

// saveAssignment saves what assign could not.
func (o *ownNode) saveAssignment() error {
	if !o.unsaved.Load() {
		return nil
	}
	if err := o.assignment().Save(o.podCIDRFile()); err != nil {
		return fmt.Errorf("%w: %w", endpoint.ErrState, err)
	}
	o.unsaved.Store(false)
	return nil
}

// followSelf changes the podCIDRs in force as the Node objects change.
func (o *ownNode) followSelf(w *table.Watch, health cell.Health) {
	txn := o.DB.ReadTxn()
	nodes, nodesChanged := o.Cluster.Nodes.AllWatch(txn)
	w.Add(nodesChanged)
	row := o.assignment()
	q := o.question(nodes)
	q.Before, q.Pods = row, true
	next := ipam.Decide(q)
	if !slices.Equal(next.InForce, row.InForce) {
		if err := o.ipam.Set(next.InForce, next.Gateways()...); err != nil {
			next.InForce, next.Gateway4, next.Gateway6 = row.InForce, row.Gateway4, row.Gateway6
			next.Problem = fmt.Sprintf("Node %s: %v: what was stays in force", q.Node, err)
		}
	}
	if next.Problem != "" { // which may be over when a pod has gone
		_, pods := o.endpoints.table.AllWatch(txn)
		w.Add(pods)
	}
	if !next.Equal(row) {
		if err := o.assign(next); err != nil {
			health.Degraded("save podCIDRs", err)
		}
		o.logAssignment(row, next)
	}
}

func (o *ownNode) logAssignment(before, now *ipam.Assignment) {
	switch {
	case now.Problem != "":
		o.Log.Warn("podCIDRs of the Node have a problem", "wanted", now.Wanted, "in force", now.InForce, "problem",
			now.Problem)
	case !slices.Equal(before.InForce, now.InForce):
		o.Log.Info("podCIDRs changed", "before", before.InForce, "in force", now.InForce, "gateways of pods",
			now.Gateways())
	default:
		o.Log.Info("podCIDRs are as wanted again", "in force", now.InForce)
	}
}

// cniProblem is why the node can't take pods, nil if it can.
func (o *ownNode) cniProblem() *cni.Problem {
	if o.Config.LoadBalancer.Standalone {
		return &cni.Problem{Reason: "loadBalancer.standalone is true: this node has no pods"}
	}
	if row := o.assignment(); len(row.InForce) == 0 {
		return &cni.Problem{Reason: row.Problem}
	}
	return nil
}

// cniStatus is cniProblem for STATUS, which is asked now and then and may try to write a file. ADD finds out by itself.
func (o *ownNode) cniStatus() *cni.Problem {
	if p := o.cniProblem(); p != nil {
		return p
	}
	if err := durable.Probe(o.Config.Myelin.RunDir); err != nil {
		return &cni.Problem{Reason: err.Error()}
	}
	return nil
}

// podConfig is what every pod of the node has in common.
func (o *ownNode) podConfig() endpoint.NodeConfig {
	c := endpoint.NodeConfig{IPv4: o.Config.IPv4.Enabled, IPv6: o.Config.IPv6.Enabled, Kind: o.endpoints.kind}
	if mtu, _, err := o.network.routes.MTU(); err == nil {
		// Before kernel 5.12, bpf_redirect_peer drops what is larger than the pod's
		// device; and what a wire brings from the world is not in the tunnel.
		if c.MTU = mtu.Pod + mtu.Overhead; mtu.Overhead != 0 {
			c.RouteMTU = mtu.Pod
		}
	}
	if row := o.assignment(); row != nil {
		c.Gateway4, c.Gateway6 = row.Gateway4, row.Gateway6
	}
	return c
}
