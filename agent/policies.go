package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/flow/tracking"
	"myelin/kube"
	"myelin/kube/crd"
	"myelin/l7"
	"myelin/policy"
	"myelin/policy/compile"
	"myelin/policy/engine"
	"myelin/policy/explain"
	"myelin/policy/maps"
)

// policies is the feature that enforces network policies.
type policies struct {
	*feature.Node
	source     *clusterSource
	identities *identities
	endpoints  *endpoints
	services   *services
	flows      *tracking.Tracking
	names      func() names
	l7         *l7.Feature

	tables policy.Tables
	engine *engine.Engine // nil if policies are not enforced
}

func (pl *policies) feature() *feature.Feature {
	watch := []string{"list", "watch"}
	return &feature.Feature{
		Name: "policies", Tables: pl.createTables, Start: pl.start, Settings: pl.settings,
		Lists: pl.lists, Refuse: pl.refuse, Metrics: pl.metrics, Commands: pl.commands(),
		Rights: []feature.Right{
			{Resources: []string{"services"}, Verbs: watch},
			{Group: "networking.k8s.io", Resources: []string{"networkpolicies"}, Verbs: watch},
			{Group: "policy.networking.k8s.io", Resources: []string{"clusternetworkpolicies"}, Verbs: watch},
			{
				Group: "cilium.io", Verbs: watch,
				Resources: []string{"ciliumnetworkpolicies", "ciliumclusterwidenetworkpolicies", "ciliumcidrgroups"},
			},
			// myelin.policy.report
			{Group: "cilium.io", Resources: []string{"ciliumnodes/status"}, Verbs: []string{"patch"}},
		},
	}
}

func (pl *policies) createTables() error {
	var err error
	pl.tables, err = policy.NewTables(pl.DB)
	pl.tables.Proxy = pl.Config.EnforcesL7()
	return err
}

// byName are the policies by which the endpoint in a slot may use names, by the number of their selector.
func (pl *policies) byName(slot uint16) (out map[uint32][]string) {
	if pl.engine != nil {
		pl.engine.View(func(c *compile.Compiler) { out = c.NamePolicies(slot) })
	}
	return out
}

func (pl *policies) settings(s *bpf.Settings) {
	s.Policy, s.HostPolicy = flag(pl.Config.EnforcesPolicies()),
		flag(pl.Config.EnforcesPolicies() && pl.Config.Policy.Host)
	cuts := map[string]bpf.DatapathPolicyCut{
		"reset": bpf.DatapathPolicyCutCUT_RESET, "drop": bpf.DatapathPolicyCutCUT_DROP,
		"leave": bpf.DatapathPolicyCutCUT_LEAVE,
	}
	s.PolicyCut = uint8(cuts[pl.Config.Policy.DeniedFlows])
}

func (pl *policies) policyConfig() policy.Config {
	c := policy.Config{
		Open: !pl.Config.Policy.Lockdown, Audit: pl.Config.Policy.Audit, Host: pl.Config.Policy.Host,
		CIDRNodes: len(pl.Config.Policy.CIDRMatchMode) > 0,
	}
	if pl.Config.PolicyEnforcementMode == "always" {
		c.Mode = policy.ModeAlways
	}
	return c
}

// start creates the engine that compiles policies into map entries. Endpoints
// wait for it. The entries of the agent before stay in force until all objects
// are known.
func (pl *policies) start(context.Context) error {
	if !pl.Config.EnforcesPolicies() {
		return nil
	}
	var err error
	ids := pl.identities.all
	pl.engine, err = engine.New(engine.Params{
		DB: pl.DB, Cluster: pl.Cluster, Policies: pl.tables, Identities: ids.Identities(), Addresses: ids.Addresses(),
		Endpoints: pl.endpoints.table, Node: pl.Config.Myelin.NodeName, ClusterName: pl.Config.ClusterName,
		Config: pl.policyConfig(), Dir: pl.Config.Myelin.RunDir, Maps: maps.New(pl.Datapath, pl.Epochs, time.Now),
		Log: pl.Log, Proxy: pl.proxy(),
	})
	if err != nil {
		return err
	}
	pl.Go("policies", pl.engine.Run)
	if server := pl.source.kube; server != nil && pl.Config.Myelin.ReportPolicies {
		reports := kube.Reports{
			Node: pl.Config.Myelin.NodeName, Realised: pl.engine.RealisedRevision, Failing: pl.failingPolicies,
		}
		pl.Go("report", func(ctx context.Context) error { return server.Report(ctx, reports) })
	}
	return nil
}

// failingPolicies are Cilium's that are not in force as they are written, and why
// pods' policies are not all in the kernel.
func (pl *policies) failingPolicies() (list []crd.FailingPolicy, problem string) {
	txn := pl.DB.ReadTxn()
	for o := range pl.tables.Policies.All(txn) {
		if o.Problem != "" && strings.HasPrefix(o.Ref.Kind, "Cilium") {
			list = append(list, crd.FailingPolicy{Kind: o.Ref.Kind, Namespace: o.Ref.Namespace, Name: o.Ref.Name,
				Reason: o.State()})
		}
	}
	failed := 0
	for r := range pl.engine.Realised.All(txn) {
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

// explainer answers questions about policies, if they are enforced.
func (pl *policies) explainer() *explain.Explainer { return explain.New(pl.engine) }

// proxy is what enforces L7 rules, nil if nothing does.
func (pl *policies) proxy() engine.Proxy {
	if !pl.Config.EnforcesL7() {
		return nil
	}
	return pl.l7
}
