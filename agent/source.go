package agent

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"myelin/cluster"
	"myelin/config"
	"myelin/endpointslice"
	"myelin/kube"
	"myelin/manifests"
	"myelin/status"
)

// startSlices makes the EndpointSlices that a controller of Kubernetes would: a
// directory has nobody to do so. It comes before the manifests are read, so that
// slices don't count as complete without.
func (a *Agent) startSlices(context.Context) error {
	if a.config.Kubernetes() {
		return nil
	}
	slices := endpointslice.New(endpointslice.Params{DB: a.db, Tables: a.cluster, Log: a.log})
	a.group.Add(job.OneShot("endpoint-slices", func(ctx context.Context, _ cell.Health) error { return slices.Run(ctx) }))
	return nil
}

// startSource begins to read the cluster.
func (a *Agent) startSource(context.Context) error {
	switch a.config.Source() {
	case config.NoSource:
		a.startMachine()
		return nil
	case config.Directory:
		return a.startManifests()
	case config.KubeConfig, config.InCluster:
	}
	return a.startKubernetes()
}

func (a *Agent) startManifests() error {
	var err error
	a.manifests, err = manifests.New(manifests.Params{
		DB: a.db, Tables: a.cluster, Policies: a.policies, LastGood: a.keepPolicies(), Dir: a.config.Myelin.Manifests, Log: a.log, Now: time.Now,
	})
	if err != nil {
		return err
	}
	a.group.Add(job.OneShot("manifests", func(ctx context.Context, _ cell.Health) error { return a.manifests.Run(ctx) }))
	return nil
}

func (a *Agent) startKubernetes() error {
	server, err := kube.NewServer(kube.Options{
		KubeConfig: a.config.KubeConfigPath, Account: kube.ServiceAccount, Host: a.config.K8sServiceHost, Port: a.config.K8sServicePort,
		Env: os.Getenv, Agent: "myelin/" + a.version,
	})
	if err != nil {
		return fmt.Errorf("neither myelin.manifests nor an API server: %w", err)
	}
	a.kube, err = kube.New(kube.Params{
		DB: a.db, Tables: a.cluster, Policies: a.policies, LastGood: a.keepPolicies(), Server: server, Log: a.log, Now: time.Now,
		ClusterPool: a.pooled(),
	})
	if err != nil {
		return err
	}
	a.group.Add(job.OneShot("kubernetes", func(ctx context.Context, _ cell.Health) error { return a.kube.Run(ctx) }))
	return nil
}

// pooled reports whether podCIDRs of nodes come from CiliumNodes.
func (a *Agent) pooled() bool { return a.config.IPAMMode == "cluster-pool" && a.config.Kubernetes() }

// refused lists what the source refuses, and a channel that closes when that
// changes; without a cluster it is nothing.
func (a *Agent) refused(txn statedb.ReadTxn) ([]*cluster.Problem, <-chan struct{}) {
	var t statedb.Table[*cluster.Problem]
	switch {
	case a.manifests != nil:
		t = a.manifests.Problems()
	case a.kube != nil:
		t = a.kube.Problems()
	default:
		return nil, nil
	}
	all, changed := t.AllWatch(txn)
	return rows(all), changed
}

// unusedKinds counts objects that nothing acts on, where the source sees them.
func (a *Agent) unusedKinds() map[string]int {
	if a.manifests == nil {
		return nil
	}
	return a.manifests.Unused()
}

// serverStatus is how the API server is doing; nil where there is none.
func (a *Agent) serverStatus() *status.APIServer {
	if a.kube == nil {
		return nil
	}
	s, _ := a.kube.State()
	out := &status.APIServer{
		Address: s.Server, ByService: s.ByService, Synced: s.Synced, LastContact: s.LastContact, Problem: s.Problem, Since: s.Since,
	}
	for _, k := range s.Kinds {
		out.Kinds = append(out.Kinds, status.Kind{Name: k.Name, Objects: k.Objects, Refused: k.Refused, Missing: k.Missing, Problem: k.Problem})
	}
	return out
}

// notTold is why the source has not told all yet, where that is the server's
// fault; again is closed when that may be another.
func (a *Agent) notTold(again changes) (_ changes, why, help string) {
	if a.kube == nil {
		return again, "", ""
	}
	s, changed := a.kube.State()
	again = append(again, changed)
	if why = s.Obstacle(); why == "" || s.Synced {
		return again, "", ""
	}
	return again, why, "look at the API server; at k8sServiceHost, k8sServicePort and kubeConfigPath of the agent; at the rights of its account (kube/role.yaml)"
}

// kubernetes is about the API server, ready or not.
func (m *metrics) kubernetes(s sink) {
	if m.agent.kube == nil {
		return
	}
	state, _ := m.agent.kube.State()
	s.gauge("myelin_kubernetes_synced", "1 when all that the API server had was taken over once.", float64(flag(state.Synced)), nil)
	s.gauge("myelin_kubernetes_up", "1 while the API server answers.", float64(flag(state.Problem == "" && !state.LastContact.IsZero())), nil)
	if !state.LastContact.IsZero() {
		s.gauge("myelin_kubernetes_last_contact_seconds", "Unix time when the API server was last heard of.", float64(state.LastContact.UnixMilli())/1000, nil)
	}
	s.counter("myelin_kubernetes_failed_requests_total", "Requests that the API server didn't answer, or with 500 and above.", float64(state.Failed), nil)
	for _, k := range state.Kinds {
		labels := prometheus.Labels{"kind": k.Name}
		s.gauge("myelin_kubernetes_objects", "Objects that are in force.", float64(k.Objects), labels)
		s.gauge("myelin_kubernetes_refused_objects", "Objects whose newest version is refused.", float64(k.Refused), labels)
	}
}

// place is where Node objects are looked for, in messages.
func (a *Agent) place() string {
	if a.kube == nil {
		return a.config.Myelin.Manifests
	}
	s, _ := a.kube.State()
	return s.Server
}
