package agent

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/endpoint"
	"myelin/kube"
	"myelin/kube/crd"
	"myelin/policy"
	"myelin/policy/engine"
	"myelin/policy/explain"
	"myelin/policy/maps"
	"myelin/policy/prefilter"
)

// policed reports whether policies are enforced.
func (a *Agent) policed() bool { return a.config.PolicyEnforcementMode != "never" && !a.standalone() }

func (a *Agent) policySettings(s *bpf.Settings) {
	s.Policy, s.HostPolicy = flag(a.policed()), flag(a.policed() && a.config.Policy.Host)
	s.Prefilter = flag(len(a.config.Policy.Prefilter) > 0)
	cuts := map[string]bpf.DatapathPolicyCut{
		"reset": bpf.DatapathPolicyCutCUT_RESET, "drop": bpf.DatapathPolicyCutCUT_DROP, "leave": bpf.DatapathPolicyCutCUT_LEAVE,
	}
	s.PolicyCut = uint8(cuts[a.config.Policy.DeniedFlows])
}

func (a *Agent) policyConfig() policy.Config {
	c := policy.Config{Open: !a.config.Policy.Lockdown, Audit: a.config.Policy.Audit, Host: a.config.Policy.Host, CIDRNodes: len(a.config.Policy.CIDRMatchMode) > 0}
	if a.config.PolicyEnforcementMode == "always" {
		c.Mode = policy.ModeAlways
	}
	return c
}

// startPolicies makes the engine that turns policies into the kernel's rows.
// Endpoints wait for it. What an agent before us had there holds until
// everything is known.
func (a *Agent) startPolicies(context.Context) error {
	if !a.policed() {
		return nil
	}
	kernel := maps.New(a.datapath, a.epochs, time.Now)
	if err := a.startPrefilter(kernel); err != nil {
		return err
	}
	var err error
	a.engine, err = engine.New(engine.Params{
		DB: a.db, Cluster: a.cluster, Policies: a.policies, Identities: a.identities.Identities(), Addresses: a.identities.Addresses(),
		Endpoints: a.endpoints, Node: a.config.Myelin.NodeName, ClusterName: a.config.ClusterName, Config: a.policyConfig(), Dir: a.config.Myelin.RunDir,
		Maps: kernel, Log: a.log,
	})
	if err != nil {
		return err
	}
	a.group.Add(job.OneShot("policies", func(ctx context.Context, _ cell.Health) error { return a.engine.Run(ctx) }))
	if a.kube != nil && a.config.Myelin.ReportPolicies {
		a.group.Add(job.OneShot("report", func(ctx context.Context, _ cell.Health) error {
			return a.kube.Report(ctx, kube.Reports{Node: a.config.Myelin.NodeName, Realised: a.engine.RealisedRevision, Failing: a.failingPolicies})
		}))
	}
	return nil
}

// failingPolicies are Cilium's that are not in force as they are written, and why
// pods' policies are not all in the kernel.
func (a *Agent) failingPolicies() (list []crd.FailingPolicy, problem string) {
	txn := a.db.ReadTxn()
	for o := range a.policies.Policies.All(txn) {
		if o.Problem != "" && strings.HasPrefix(o.Ref.Kind, "Cilium") {
			list = append(list, crd.FailingPolicy{Kind: o.Ref.Kind, Namespace: o.Ref.Namespace, Name: o.Ref.Name, Reason: o.State()})
		}
	}
	failed := 0
	for r := range a.engine.Realised.All(txn) {
		if r.Error == "" {
			continue
		}
		if failed++; failed == 1 {
			problem = r.Pod + ": " + r.Error
		}
	}
	if failed > 1 {
		problem += fmt.Sprintf(" (and %d other pods)", failed-1)
	}
	return list, problem
}

// startPrefilter keeps out who may not come in at all, where the configuration
// names groups of them.
func (a *Agent) startPrefilter(kernel *maps.Writer) error {
	if len(a.config.Policy.Prefilter) == 0 {
		return nil
	}
	var err error
	a.prefilter, err = prefilter.New(prefilter.Params{
		DB: a.db, Groups: a.policies.Groups, Nodes: a.cluster.Nodes, OffCIDR: a.outsiders.Rows, Names: a.config.Policy.Prefilter, Maps: kernel, Log: a.log,
	})
	if err != nil {
		return err
	}
	a.group.Add(job.OneShot("prefilter", func(ctx context.Context, _ cell.Health) error { return a.prefilter.Run(ctx) }))
	return nil
}

// addressElsewhere reports whether another Pod has the address, which no endpoint
// has: one that was there before Myelin was the node's network, or one of another
// node, whose podCIDR it was.
func (a *Agent) addressElsewhere(addr netip.Addr, namespace, pod string) bool {
	for p := range a.cluster.Pods.List(a.db.ReadTxn(), cluster.PodsByAddress(addr)) {
		if p.Key() != (cluster.Key{Namespace: namespace, Name: pod}) {
			return true
		}
	}
	return false
}

// podReady returns when a new pod can be reached, and its policies hold.
func (a *Agent) podReady(ctx context.Context, e *endpoint.Endpoint) error {
	if err := a.saveAssignment(); err != nil {
		return err
	}
	if err := a.routes.WaitPod(ctx, e.LinkName, e.Addresses()...); err != nil {
		return err
	}
	if a.engine == nil {
		return nil
	}
	return a.engine.WaitPod(ctx, e.ID)
}

// explainer answers questions about policies, where they are enforced.
func (a *Agent) explainer() *explain.Explainer { return explain.New(a.engine) }
