package kube_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"sigs.k8s.io/yaml"

	"myelin/cluster"
	"myelin/kube"
	"myelin/policy"
	"myelin/test/kube/apiserver"
)

// world is the tables of an agent and the source that fills them.
type world struct {
	*testing.T

	db       *statedb.DB
	cluster  cluster.Tables
	policies policy.Tables
	source   *kube.Source
}

func tables(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, db: statedb.New()}
	var err error
	if w.cluster, err = cluster.NewTables(w.db); err != nil {
		t.Fatal(err)
	}
	if w.policies, err = policy.NewTables(w.db); err != nil {
		t.Fatal(err)
	}
	return w
}

// follow runs a source until the test ends.
func follow(t *testing.T, o kube.Options) *world {
	t.Helper()
	return followWith(t, o, func(*kube.Params) {})
}

// followWith does so with other parameters.
func followWith(t *testing.T, o kube.Options, change func(*kube.Params)) *world {
	t.Helper()
	w := tables(t)
	server, err := kube.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	params := kube.Params{DB: w.db, Tables: w.cluster, Policies: w.policies, Server: server,
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Now: time.Now}
	change(&params)
	w.source, err = kube.New(params)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.source.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("the source doesn't end")
		}
	})
	return w
}

// eventually waits until f says nothing.
func (w *world) eventually(what string, f func() string) {
	w.Helper()
	apiserver.Eventually(w, what, f)
}

func (w *world) state() kube.State {
	s, _ := w.source.State()
	return s
}

func (w *world) synced() *world {
	w.Helper()
	w.eventually("the source has told all", func() string {
		if s := w.state(); !s.Synced {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	return w
}

// lines are all rows, without the place that they were read from.
func (w *world) lines() (list []string) {
	txn := w.db.ReadTxn()
	add := func(row any) {
		text, err := json.Marshal(row)
		if err != nil {
			w.Fatal(err)
		}
		list = append(list, fmt.Sprintf("%T %s", row, text))
	}
	for row := range w.cluster.Nodes.All(txn) {
		c := *row
		c.Source = ""
		add(&c)
	}
	for row := range w.cluster.Namespaces.All(txn) {
		c := *row
		c.Source = ""
		add(&c)
	}
	for row := range w.cluster.Pods.All(txn) {
		c := *row
		c.Source, c.Annotations = "", nil // not used
		add(&c)
	}
	for row := range w.cluster.Services.All(txn) {
		c := *row
		c.Source = ""
		add(&c)
	}
	for row := range w.cluster.Slices.All(txn) {
		c := *row
		c.Source = ""
		add(&c)
	}
	for row := range w.policies.Policies.All(txn) {
		c := row.Anywhere()
		c.Since = time.Time{}
		add(c)
	}
	for row := range w.policies.Groups.All(txn) {
		c := *row
		c.Source, c.Since = "", time.Time{}
		add(&c)
	}
	return list
}

// revisions change with every write of a row.
func (w *world) revisions() string {
	txn := w.db.ReadTxn()
	return fmt.Sprint(w.cluster.Nodes.Revision(txn), w.cluster.Namespaces.Revision(txn), w.cluster.Pods.Revision(txn),
		w.cluster.Services.Revision(txn),
		w.cluster.Slices.Revision(txn), w.policies.Policies.Revision(txn), w.policies.Groups.Revision(txn))
}

// server is a real one, with our ways to talk to it.
type server struct{ *apiserver.Server }

// apply creates or changes the objects of a YAML text, and returns their paths.
func (s server) apply(t *testing.T, text string) (paths []string) {
	t.Helper()
	for _, doc := range strings.Split("\n"+text, "\n---") {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatal(err)
		}
		if o == nil {
			continue
		}
		at := path(o)
		paths = append(paths, at)
		status, ok := o["status"]
		delete(o, "status")
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		s.Apply(at, text)
		if text, err = json.Marshal(map[string]any{"status": status}); ok && err == nil {
			s.Merge(at+"/status", text)
		}
	}
	return paths
}

// applyFile applies files below the tree's root.
func (s server) applyFile(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		s.apply(t, string(text))
	}
}

// resources are kinds of the tests, by apiVersion.
func resources() map[string]string {
	return map[string]string{
		"Node": "nodes", "Namespace": "namespaces", "Pod": "pods/", "Service": "services/",
		"EndpointSlice": "endpointslices/",
		"NetworkPolicy": "networkpolicies/", "CiliumNetworkPolicy": "ciliumnetworkpolicies/",
		"CiliumCIDRGroup":                "ciliumcidrgroups",
		"CiliumClusterwideNetworkPolicy": "ciliumclusterwidenetworkpolicies",
		"ClusterNetworkPolicy":           "clusternetworkpolicies",
		"CustomResourceDefinition":       "customresourcedefinitions", "ClusterRole": "clusterroles",
		"ClusterRoleBinding": "clusterrolebindings", "Role": "roles/", "RoleBinding": "rolebindings/",
		"Secret": "secrets/",
	}
}

// path is where an object is on the server.
func path(o map[string]any) string {
	meta, _ := o["metadata"].(map[string]any)
	resource, namespaced := strings.CutSuffix(resources()[fmt.Sprint(o["kind"])], "/")
	at := "/apis/" + fmt.Sprint(o["apiVersion"])
	if o["apiVersion"] == "v1" {
		at = "/api/v1"
	}
	if namespaced {
		namespace, ok := meta["namespace"].(string)
		if !ok {
			namespace = "default"
		}
		at += "/namespaces/" + namespace
	}
	return at + "/" + resource + "/" + fmt.Sprint(meta["name"])
}

// dump is all that the server has of our kinds, as manifests.
func (s server) dump() string {
	var out bytes.Buffer
	for _, at := range []string{
		"/api/v1/nodes", "/api/v1/namespaces", "/api/v1/pods", "/api/v1/services",
		"/apis/discovery.k8s.io/v1/endpointslices",
		"/apis/networking.k8s.io/v1/networkpolicies", "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies",
		"/apis/cilium.io/v2/ciliumnetworkpolicies", "/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies",
		"/apis/cilium.io/v2/ciliumcidrgroups",
	} {
		out.WriteString("---\n")
		out.Write(s.Get(at))
	}
	return out.String()
}
