package agent

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"myelin/agent/feature"
	"myelin/cluster"
	"myelin/config"
	"myelin/internal/table"
	"myelin/kube"
	"myelin/kube/manifests"
	"myelin/operator/endpointslice"
	"myelin/status"
)

// clusterSource is the feature that reads the cluster, from a directory or an API server. Both are nil without
// a cluster.
type clusterSource struct {
	*feature.Node
	version  string
	policies *policies
	own      *ownNode

	manifests *manifests.Source // nil without a directory
	kube      *kube.Source      // nil without an API server
}

func (c *clusterSource) slices() *feature.Feature {
	return &feature.Feature{
		Name: "endpoint slices", Start: c.startSlices,
		Rights: []feature.Right{
			{Group: "discovery.k8s.io", Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
		},
	}
}

func (c *clusterSource) feature() *feature.Feature {
	return &feature.Feature{
		Name: "cluster", Start: c.startSource, Metrics: c.nodeMetrics, Commands: c.commands(),
		Rights: []feature.Right{
			{Resources: []string{"nodes", "namespaces", "pods"}, Verbs: []string{"list", "watch"}},
			{Group: "apiextensions.k8s.io", Resources: []string{"customresourcedefinitions"},
				Verbs: []string{"list", "watch"}},
		},
	}
}

func (c *clusterSource) nodeMetrics(s feature.Sink) {
	s.Gauge("myelin_nodes_all_num", "Nodes of the cluster.", float64(c.Cluster.Nodes.NumObjects(c.DB.ReadTxn())), nil)
}

// startSlices makes the EndpointSlices that a controller of Kubernetes would make, as there is none for a directory of
// manifests. It comes before the manifests are read, so that slices don't count as complete without these.
func (c *clusterSource) startSlices(context.Context) error {
	if c.Config.Kubernetes() {
		return nil
	}
	slices := endpointslice.New(endpointslice.Params{DB: c.DB, Tables: c.Cluster, Log: c.Log})
	c.Go("endpoint-slices", slices.Run)
	return nil
}

// startSource begins to read the cluster.
func (c *clusterSource) startSource(context.Context) error {
	switch c.Config.Source() {
	case config.NoSource:
		c.own.startMachine()
		return nil
	case config.Directory:
		return c.startManifests()
	case config.KubeConfig, config.InCluster:
	}
	return c.startKubernetes()
}

func (c *clusterSource) startManifests() error {
	var err error
	c.manifests, err = manifests.New(manifests.Params{
		DB: c.DB, Tables: c.Cluster, Policies: c.policies.tables, LastGood: c.keepPolicies(),
		Dir: c.Config.Myelin.Manifests, Log: c.Log, Now: time.Now,
	})
	if err != nil {
		return err
	}
	c.Go("manifests", c.manifests.Run)
	return nil
}

func (c *clusterSource) startKubernetes() error {
	server, err := kube.NewServer(kube.Options{
		KubeConfig: c.Config.KubeConfigPath, Account: kube.ServiceAccount, Host: c.Config.K8sServiceHost,
		Port: c.Config.K8sServicePort, Env: os.Getenv, Agent: "myelin/" + c.version,
	})
	if err != nil {
		return fmt.Errorf("neither myelin.manifests nor an API server: %w", err)
	}
	c.kube, err = kube.New(kube.Params{
		DB: c.DB, Tables: c.Cluster, Policies: c.policies.tables, LastGood: c.keepPolicies(), Server: server,
		Log: c.Log, Now: time.Now, ClusterPool: c.Config.PodCIDRsFromPool(), SecretsNamespace: c.secretsNamespace(),
		NodeKeys: c.Config.Encryption.Enabled,
	})
	if err != nil {
		return err
	}
	c.Go("kubernetes", c.kube.Run)
	return nil
}

// secretsNamespace is where policies' Secrets are; empty if nothing enforces them.
func (c *clusterSource) secretsNamespace() string {
	if !c.Config.EnforcesL7() {
		return ""
	}
	return c.Config.L7.SecretsNamespace
}

// publishKey writes a node's public keys to the API server; nil without one.
func (c *clusterSource) publishKey() func(ctx context.Context, node, key, next string) error {
	if c.kube == nil {
		return nil
	}
	return c.kube.PublishKey
}

// publishIPsec writes what other nodes derive the keys of IPsec from to the API server; nil without one.
func (c *clusterSource) publishIPsec() func(ctx context.Context, node, value string) error {
	if c.kube == nil {
		return nil
	}
	return c.kube.PublishIPsec
}

// refused lists what the source refuses, and a channel that closes when that
// changes; without a cluster it is nothing.
func (c *clusterSource) refused(txn statedb.ReadTxn) ([]*cluster.Problem, <-chan struct{}) {
	var t statedb.Table[*cluster.Problem]
	switch {
	case c.manifests != nil:
		t = c.manifests.Problems()
	case c.kube != nil:
		t = c.kube.Problems()
	default:
		return nil, nil
	}
	all, changed := t.AllWatch(txn)
	return rows(all), changed
}

// unusedKinds counts objects that nothing acts on, where the source sees them.
func (c *clusterSource) unusedKinds() map[string]int {
	if c.manifests == nil {
		return nil
	}
	return c.manifests.Unused()
}

// serverStatus is how the API server is doing; nil where there is none.
func (c *clusterSource) serverStatus() *status.APIServer {
	if c.kube == nil {
		return nil
	}
	s, _ := c.kube.State()
	out := &status.APIServer{
		Address: s.Server, ByService: s.ByService, Synced: s.Synced, LastContact: s.LastContact, Problem: s.Problem,
		Since: s.Since,
	}
	for _, k := range s.Kinds {
		out.Kinds = append(out.Kinds, status.Kind{Name: k.Name, Objects: k.Objects, Refused: k.Refused,
			Missing: k.Missing, Problem: k.Problem})
	}
	return out
}

// notTold is why the API server has not sent all objects yet, empty if that is
// not the server's fault.
func (c *clusterSource) notTold(w *table.Watch) (why, help string) {
	if c.kube == nil {
		return "", ""
	}
	s, changed := c.kube.State()
	w.Add(changed)
	if why = s.Obstacle(); why == "" || s.Synced {
		return "", ""
	}
	return why, "look at the API server; at k8sServiceHost, k8sServicePort and kubeConfigPath of the agent; at the " +
		"rights of its account (kube/role.yaml)"
}

// kubernetes is about the API server, ready or not.
func (c *clusterSource) metrics(s feature.Sink) {
	if c.kube == nil {
		return
	}
	state, _ := c.kube.State()
	s.Gauge("myelin_kubernetes_synced", "1 when all that the API server had was taken over once.",
		float64(flag(state.Synced)), nil)
	s.Gauge("myelin_kubernetes_up", "1 while the API server answers.",
		float64(flag(state.Problem == "" && !state.LastContact.IsZero())), nil)
	if !state.LastContact.IsZero() {
		s.Gauge("myelin_kubernetes_last_contact_seconds", "Unix time when the API server was last heard of.",
			float64(state.LastContact.UnixMilli())/1000, nil)
	}
	s.Counter("myelin_kubernetes_failed_requests_total",
		"Requests that the API server didn't answer, or with 500 and above.", float64(state.Failed), nil)
	for _, k := range state.Kinds {
		labels := prometheus.Labels{"kind": k.Name}
		s.Gauge("myelin_kubernetes_objects", "Objects that are in force.", float64(k.Objects), labels)
		s.Gauge("myelin_kubernetes_refused_objects", "Objects whose newest version is refused.",
			float64(k.Refused), labels)
	}
}

// place is where Node objects are looked for, in messages.
func (c *clusterSource) place() string {
	if c.kube == nil {
		return c.Config.Myelin.Manifests
	}
	s, _ := c.kube.State()
	return s.Server
}

// commands are those that show the cluster.
func (*clusterSource) commands() []feature.Command {
	return []feature.Command{
		{Name: "node", Short: "Inspect the nodes of the cluster", Views: []feature.View{{Name: "list",
			Short: "List the nodes of the cluster", Table: "nodes"}}},
		{Name: "pod", Short: "Inspect the pods of the cluster", Views: []feature.View{{Name: "list",
			Short: "List the pods of the cluster", Table: "pods"}}},
	}
}
