package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime/debug"

	"myelin/bench/results"
	"myelin/bpf"
	"myelin/endpoint"
	"myelin/policy"
)

// policyPath is pod→pod with a datapath on each node that enforces policies, and no agents.
//
//	┌────────── a ──────────┐   wire, MTU 1500    ┌────────── b ──────────┐
//	│ enforcer       wire0 ─┼─────────────────────┼─ wire0       enforcer │
//	│ pod0                  │                     │                  pod0 │
//	└──┼────────────────────┘                     └────────────────────┼──┘
//	   └─ eth0 in ap: app client                  eth0 in bp: app server ─┘
type policyPath struct {
	kernelPath
	family   Family
	policies int // for both pods
	cidrs    int // in a list in the place of policies: then all but the node's own pods is the world's
	nodes    []*enforcer
	dirs     []string
	collect  int // how Go collected garbage before; 0: as ever
}

// Policies are ways from pod to pod where policies are enforced: with none, with so many for each pod, and with lists
// of addresses.
func Policies() (all []Scenario) {
	for _, n := range []int{0, 1, 100, 10_000} {
		all = append(all, &policyPath{kernelPath: kernelPath{name: fmt.Sprintf("%d-policies", n), pods: true},
			policies: n})
	}
	for _, n := range []int{10, 10_000, 1_000_000} {
		all = append(all, &policyPath{kernelPath: kernelPath{name: fmt.Sprintf("%d-cidrs", n), pods: true}, cidrs: n})
	}
	return all
}

const podSlot = endpoint.MinID

// Setup refuses to measure where not all of it is in the kernel.
func (p *policyPath) Setup(ctx context.Context, family Family) (Path, error) {
	p.family = family
	path, err := p.kernelPath.Setup(ctx, family)
	if err != nil {
		return path, err
	}
	for i, node := range []string{"a", "b"} {
		if err := p.enforce(ctx, i, node); err != nil {
			return path, fmt.Errorf("enforce policies on node %s: %w", node, err)
		}
	}
	// What is garbage of that is not collected in the middle of a run: Go does so every two minutes, which are short in
	// the VM.
	debug.FreeOSMemory()
	p.collect = debug.SetGCPercent(-1)
	return path, nil
}

func (p *policyPath) enforce(ctx context.Context, i int, node string) error {
	dir, err := os.MkdirTemp("", p.prefix)
	if err != nil {
		return err
	}
	p.dirs = append(p.dirs, dir)
	all, err := p.objects(i)
	if err != nil {
		return err
	}
	sizes := bpf.Sizes{Peers: 1 << 21, PeerPrefixes: 1 << 20, PeerClasses: 1 << 16, Verdicts: 1 << 18}
	e, err := newEnforcer(ctx, dir, node, bpf.Options{Settings: p.family.addressing().withGateway(enforcing()),
		Sizes: sizes}, func(e *enforcer) error {
		return errors.Join(e.put(all), p.hang(ctx, e, i, node))
	})
	if err != nil {
		return err
	}
	p.nodes = append(p.nodes, e)
	return p.enforced(ctx, e)
}

// objects are what the node with the number knows.
func (p *policyPath) objects(i int) (*policed, error) {
	at, all := p.family.addressing(), &policed{}
	err := all.addNamespace(namespace)
	for n, node := range []string{"a", "b"} {
		if n != i && p.cidrs > 0 {
			continue
		}
		app := [2]string{"client", "server"}[n]
		err = errors.Join(err,
			all.addNode(node, at.wire[n], around(at.pod[n], at.bits)),
			all.addPod(node, namespace, app, map[string]string{"app": app}, at.pod[n]))
	}
	if p.cidrs > 0 {
		return all, errors.Join(err, all.addList(namespace, p.cidrs, around(at.pod[0], at.bits)))
	}
	return all, errors.Join(err, all.addPolicies(namespace, p.policies, "client", "server"))
}

// around is what a node's pods have: 256 addresses of IPv4, or a /64.
func around(pod string, bits int) netip.Prefix {
	prefix, _ := netip.MustParseAddr(pod).Prefix(map[int]int{32: 24, 128: 64}[bits])
	return prefix
}

// hang makes it the node's, of whose pod the policies' engine knows.
func (p *policyPath) hang(ctx context.Context, e *enforcer, i int, node string) error {
	at := p.family.addressing()
	pod := netip.MustParseAddr(at.pod[i])
	attachment := &endpoint.Endpoint{ID: podSlot, ContainerID: p.prefix + node, IfName: "eth0", Namespace: namespace,
		Pod: [2]string{"client", "server"}[i], IPv4: pod, State: endpoint.StateReady}
	if pod.Is6() {
		attachment.IPv4, attachment.IPv6 = attachment.IPv6, pod
	}
	txn := e.db.WriteTxn(e.endpoints)
	defer txn.Abort()
	err := errors.Join(insert(txn, e.endpoints, []*endpoint.Endpoint{attachment}), p.join(ctx, e.datapath, at, i))
	if err != nil {
		return err
	}
	txn.Commit()
	return nil
}

// enforced returns when the pod's policies are in the kernel, and checks that there is a rule for each.
func (p *policyPath) enforced(ctx context.Context, e *enforcer) error {
	ctx, cancel := context.WithTimeout(ctx, 10*patience)
	defer cancel()
	if err := e.engine.WaitPod(ctx, podSlot); err != nil {
		return err
	}
	row, _, ok := e.engine.Realised.Get(e.db.ReadTxn(), policy.RealisedBySlot(podSlot))
	if !ok || row.Error != "" {
		return fmt.Errorf("the pod's policies are not in the kernel: %+v", row)
	}
	want := [2]int{p.policies, p.policies}
	if p.cidrs > 0 {
		want = [2]int{1, 2}
	}
	if row.Rules != want {
		return fmt.Errorf("%v rules apply to the pod, not %v", row.Rules, want)
	}
	return nil
}

// Teardown removes the programs with the nodes.
func (p *policyPath) Teardown(ctx context.Context) error {
	var err error
	if p.collect != 0 {
		debug.SetGCPercent(p.collect)
		p.collect = 0
	}
	for _, e := range p.nodes {
		err = errors.Join(err, e.close())
	}
	for _, dir := range p.dirs {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	p.nodes, p.dirs = nil, nil
	return errors.Join(err, p.kernelPath.Teardown(ctx))
}

// PolicyRatios compares, of what one way of measuring found, ways with policies with that of none, and ways with longer
// lists with that of the shortest.
func PolicyRatios(way string, family Family, measured []results.Result) []results.Result {
	c := comparison{way: way, family: family, measured: measured}
	for _, test := range []string{"rr", "crr"} {
		for _, n := range []int{1, 100, 10_000} {
			c.add(test, fmt.Sprintf("%d-policies", n), "0-policies", fmt.Sprintf("policy/%s_%d_vs_0", test, n))
		}
		for _, n := range []int{10_000, 1_000_000} {
			c.add(test, fmt.Sprintf("%d-cidrs", n), "10-cidrs", fmt.Sprintf("policy/cidr_%s_%d_vs_10", test, n))
		}
	}
	return c.list
}
