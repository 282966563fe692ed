package agent

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/cni"
	"myelin/durable"
	"myelin/endpoint"
	"myelin/ipam"
)

// findSelf waits for this node's own object: without its podCIDRs there is
// nothing to begin with. From then on it follows them.
func (a *Agent) findSelf(ctx context.Context) error {
	if a.standalone() {
		return a.findMachine(ctx)
	}
	before, err := ipam.Load(a.podCIDRFile())
	if err != nil {
		a.log.Error("the podCIDRs in force before are not known", "error", err)
	}
	files, err := filepath.Glob(filepath.Join(a.config.Myelin.RunDir, "endpoints", "*.json"))
	if err != nil {
		return fmt.Errorf("look for endpoints: %w", err)
	}
	if a.ipam, err = ipam.New(); err != nil {
		return err
	}
	for {
		changed, why, help := a.seeSelf(before, len(files) > 0)
		if why == "" && help == "" && a.assignment() != nil {
			break
		}
		if a.progress.waitsFor(why, help) {
			a.log.Warn("waiting for this node's object", "node", a.config.Myelin.NodeName, "problem", why, "help", help)
		}
		if err := changed.wait(ctx); err != nil {
			return fmt.Errorf("wait for Node %s: %w", a.config.Myelin.NodeName, err)
		}
	}
	a.group.Add(job.OneShot("podcidrs", a.followSelf))
	return nil
}

// changes are channels of which one is closed when it is time to look again.
type changes []<-chan struct{}

func (c changes) wait(ctx context.Context) error {
	set := statedb.NewWatchSet()
	set.Add(c...)
	if _, err := set.Wait(ctx, 0); err != nil {
		return context.Cause(ctx)
	}
	return nil
}

// seeSelf writes the first row of podCIDRs in force, or says what is missing
// and what would help; both are empty while the sources have not told all.
func (a *Agent) seeSelf(before *ipam.Assignment, pods bool) (again changes, why, help string) {
	txn := a.db.ReadTxn()
	nodes, nodesChanged := a.cluster.Nodes.AllWatch(txn)
	problems, problemsChanged := a.refused(txn)
	known, initialized := a.cluster.Nodes.Initialized(txn)
	again = changes{nodesChanged, problemsChanged}
	if !known {
		again = append(again, initialized)
	}
	q := a.question(nodes)
	q.Before, q.Pods = before, pods
	if len(q.Wanted) > 0 {
		next := ipam.Decide(q)
		if err := a.ipam.Set(next.InForce, next.Gateways()...); err != nil {
			return again, fmt.Sprintf("Node %s: %v", q.Node, err), "correct spec.podCIDRs of the Node"
		}
		if err := a.assign(next); err != nil {
			return again, err.Error(), "look at the file system of myelin.runDir"
		}
		return again, "", ""
	}
	if again, why, help = a.notTold(again); why != "" {
		return again, why, help
	}
	why, help = a.missing(txn, problems, known)
	return again, why, help
}

// question is about the podCIDRs of this node as its object and those of other nodes have them.
func (a *Agent) question(nodes func(func(*cluster.Node, statedb.Revision) bool)) ipam.Question {
	q := ipam.Question{Node: a.config.Myelin.NodeName}
	for n := range nodes {
		if n.Name == q.Node {
			q.Wanted = a.familiesOn(n.PodCIDRs)
		} else {
			q.Others = append(q.Others, ipam.Other{Node: n.Name, PodCIDRs: n.PodCIDRs})
		}
	}
	return q
}

// familiesOn leaves out prefixes of a family that is off.
func (a *Agent) familiesOn(all []netip.Prefix) (list []netip.Prefix) {
	for _, p := range all {
		if p.Addr().Is4() && a.config.IPv4.Enabled || p.Addr().Is6() && a.config.IPv6.Enabled {
			list = append(list, p)
		}
	}
	return list
}

// missing says why the node has no podCIDRs, in the words of whoever would
// have to change something.
func (a *Agent) missing(txn statedb.ReadTxn, problems []*cluster.Problem, known bool) (why, help string) {
	name := a.config.Myelin.NodeName
	n, _, found := a.cluster.Nodes.Get(txn, cluster.NodeByName(name))
	for _, p := range problems {
		if !found && p.Object == "Node "+name {
			return "the Node object was refused: " + p.Error(), "correct it"
		}
	}
	switch {
	case found && len(n.PodCIDRs) == 0 && a.pooled():
		return fmt.Sprintf("CiliumNode %s has no podCIDRs yet, or there is none", name),
			"look at myelin-operator, which gives nodes podCIDRs in ipam.mode cluster-pool, and at status.ipam.operator-status of the CiliumNode"
	case found && len(n.PodCIDRs) == 0:
		return fmt.Sprintf("Node %s (%s) has no podCIDRs", name, n.Source), "set spec.podCIDRs of the Node"
	case found:
		return fmt.Sprintf("Node %s (%s) has no podCIDR of a family that is on", name, n.Source), "set spec.podCIDRs of the Node, or ipv4.enabled or ipv6.enabled of the agent"
	case !known:
		return a.noManifests(problems)
	}
	seen := "none"
	var names []string
	for n := range a.cluster.Nodes.All(txn) {
		names = append(names, n.Name)
	}
	if len(names) > 0 {
		seen = strings.Join(names[:min(len(names), fewNames)], ", ")
	}
	if more := len(names) - fewNames; more > 0 {
		seen += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("no Node object named %s in %s; seen: %s", name, a.place(), seen),
		fmt.Sprintf("add a Node %s with spec.podCIDRs, or set myelin.nodeName to one that is there", name)
}

// noManifests is why nothing is known yet: the directory can't be read. An object that is rejected keeps no other one
// from being known.
func (a *Agent) noManifests(problems []*cluster.Problem) (why, help string) {
	if a.manifests == nil {
		return "", ""
	}
	for _, p := range problems {
		if p.File == a.manifests.Dir {
			return "manifests: " + p.Error(), "make the directory, or set myelin.manifests to the right one"
		}
	}
	return "", ""
}

// fewNames of nodes are in a message.
const fewNames = 5

func (a *Agent) podCIDRFile() string { return filepath.Join(a.config.Myelin.RunDir, "podcidrs.json") }

// assignment is the row of podCIDRs in force, nil before there is one.
func (a *Agent) assignment() *ipam.Assignment {
	row, _, _ := a.podCIDRs.Get(a.db.ReadTxn(), ipam.ByNode(a.config.Myelin.NodeName))
	return row
}

// assign puts a row in force: in the file first, so that a crash does not
// forget which gateways pods have. Where there is no room for the file, the row
// is in force all the same, and no pod is added before it is saved.
func (a *Agent) assign(row *ipam.Assignment) error {
	row.Since = time.Now()
	err := row.Save(a.podCIDRFile())
	full := durable.Full(err)
	if err != nil && !full {
		return err
	}
	if full {
		a.log.Warn("podCIDRs in force are not saved yet", "error", err)
	}
	a.unsaved.Store(full)
	txn := a.db.WriteTxn(a.podCIDRs)
	defer txn.Abort()
	if _, _, err := a.podCIDRs.Insert(txn, row); err != nil {
		return fmt.Errorf("write podCIDRs in force: %w", err)
	}
	if a.assigned != nil {
		a.assigned(txn)
		a.assigned = nil
	}
	txn.Commit()
	return nil
}

// saveAssignment saves what assign could not.
func (a *Agent) saveAssignment() error {
	if !a.unsaved.Load() {
		return nil
	}
	if err := a.assignment().Save(a.podCIDRFile()); err != nil {
		return fmt.Errorf("%w: %w", endpoint.ErrState, err)
	}
	a.unsaved.Store(false)
	return nil
}

// followSelf changes the podCIDRs in force as the Node objects change.
func (a *Agent) followSelf(ctx context.Context, health cell.Health) error {
	for {
		txn := a.db.ReadTxn()
		nodes, nodesChanged := a.cluster.Nodes.AllWatch(txn)
		again := changes{nodesChanged}
		row := a.assignment()
		q := a.question(nodes)
		q.Before, q.Pods = row, true
		next := ipam.Decide(q)
		if !slices.Equal(next.InForce, row.InForce) {
			if err := a.ipam.Set(next.InForce, next.Gateways()...); err != nil {
				next.InForce, next.Gateway4, next.Gateway6 = row.InForce, row.Gateway4, row.Gateway6
				next.Problem = fmt.Sprintf("Node %s: %v: what was stays in force", q.Node, err)
			}
		}
		if next.Problem != "" { // which may be over when a pod has gone
			_, pods := a.endpoints.AllWatch(txn)
			again = append(again, pods)
		}
		if !next.Equal(row) {
			if err := a.assign(next); err != nil {
				health.Degraded("save podCIDRs", err)
			}
			a.logAssignment(row, next)
		}
		if err := again.wait(ctx); err != nil {
			return nil
		}
	}
}

func (a *Agent) logAssignment(before, now *ipam.Assignment) {
	switch {
	case now.Problem != "":
		a.log.Warn("podCIDRs of the Node have a problem", "wanted", now.Wanted, "in force", now.InForce, "problem", now.Problem)
	case !slices.Equal(before.InForce, now.InForce):
		a.log.Info("podCIDRs changed", "before", before.InForce, "in force", now.InForce, "gateways of pods", now.Gateways())
	default:
		a.log.Info("podCIDRs are as wanted again", "in force", now.InForce)
	}
}

// cniProblem is why the node can't take pods, nil if it can.
func (a *Agent) cniProblem() *cni.Problem {
	if a.standalone() {
		return &cni.Problem{Reason: "loadBalancer.standalone is true: this node has no pods"}
	}
	if row := a.assignment(); len(row.InForce) == 0 {
		return &cni.Problem{Reason: row.Problem}
	}
	return nil
}

// cniStatus is cniProblem for STATUS, which is asked now and then and may try to write a file. ADD finds out by itself.
func (a *Agent) cniStatus() *cni.Problem {
	if p := a.cniProblem(); p != nil {
		return p
	}
	if err := durable.Probe(a.config.Myelin.RunDir); err != nil {
		return &cni.Problem{Reason: err.Error()}
	}
	return nil
}
