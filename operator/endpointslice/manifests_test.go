package endpointslice

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/rogpeppe/go-internal/txtar"

	"myelin/cluster"
	"myelin/kube/manifests"
	"myelin/policy"
)

// directory has what users write, and, below status, kubelets.
const directory = `
-- web.yaml --
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/zone: za}}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Pod
metadata: {name: a, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, image: x, ports: [{name: http, containerPort: 8080}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, image: x, ports: [{name: http, containerPort: 8080}]}]}
-- status/a.yaml --
apiVersion: v1
kind: Pod
metadata: {name: a}
spec: {nodeName: n1, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.0.1.2}, {ip: "fd00:1::2"}], conditions: [{type: Ready, status: "True"}]}
-- status/b.yaml --
apiVersion: v1
kind: Pod
metadata: {name: b, deletionTimestamp: "2026-01-02T03:04:05Z"}
spec: {nodeName: n1, containers: [{name: c}]}
status: {phase: Running, podIP: 10.0.1.3, conditions: [{type: Ready, status: "False"}]}
`

// A directory, as users and kubelets write it, becomes slices, which are there
// as soon as slices count as initialized. What comes later follows.
func TestManifests(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "status"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range txtar.Parse([]byte(directory)).Files {
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w := started(t, dir)
	r := w.DB.ReadTxn()
	ok, initialized := w.Tables.Slices.Initialized(r)
	if !ok {
		await(t, initialized)
	}
	want := sorted(`made default/web IPv4 8080/TCP: [a 10.0.1.2 ready serving n1 za] [b 10.0.1.3 terminating n1 za]
made default/web IPv6 8080/TCP: [a fd00:1::2 ready serving n1 za]`)
	if got := sorted(w.dump()); got != want {
		t.Fatalf("got\n%s\nwant\n%s", got, want)
	}
	if err := os.Remove(filepath.Join(dir, "status", "a.yaml")); err != nil {
		t.Fatal(err)
	}
	want = sorted("made default/web IPv4 8080/TCP: [b 10.0.1.3 terminating n1 za]")
	for range 100 { // changes of the table, of which one is the last
		_, changed := w.Tables.Slices.AllWatch(w.DB.ReadTxn())
		if sorted(w.dump()) == want {
			return
		}
		await(t, changed)
	}
	t.Fatalf("got\n%s\nwant\n%s", sorted(w.dump()), want)
}

func await(t *testing.T, changed <-chan struct{}) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing happened for 20 seconds")
	}
}

// started runs a source of manifests and a controller, constructed in the order
// of the agent.
func started(t *testing.T, dir string) *world {
	t.Helper()
	db, log := statedb.New(), slog.New(slog.DiscardHandler)
	tables, err := cluster.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	c := New(Params{DB: db, Tables: tables, Log: log})
	policies, err := policy.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	source, err := manifests.New(manifests.Params{DB: db, Tables: tables, Policies: policies, Dir: dir, Log: log,
		Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- source.Run(ctx) }()
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	return &world{Controller: c}
}
