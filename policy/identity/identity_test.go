package identity

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/internal/table/ledger"
)

// world is a cluster with identities that run over it.
type world struct {
	*testing.T
	db     *statedb.DB
	tables cluster.Tables
	ids    *Identities
	now    atomic.Int64 // seconds
	stop   func()
	known  func() // marks the cluster tables as initialized
}

func newWorld(t *testing.T, file string) *world {
	t.Helper()
	w := &world{T: t, db: statedb.New()}
	var err error
	if w.tables, err = cluster.NewTables(w.db); err != nil {
		t.Fatal(err)
	}
	txn := w.db.WriteTxn(w.tables.Nodes)
	done := w.tables.Nodes.RegisterInitializer(txn, "test")
	txn.Commit()
	w.known = func() {
		txn := w.db.WriteTxn(w.tables.Nodes)
		done(txn)
		txn.Commit()
	}
	w.ids, err = New(Params{
		DB: w.db, Tables: w.tables, Node: "n1", File: file, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return time.Unix(w.now.Load(), 0) }, Grace: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.ids.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		w.stop = func() {}
	}
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *world) change(f func(txn statedb.WriteTxn) error) {
	w.Helper()
	txn := w.db.WriteTxn(w.tables.Nodes, w.tables.Namespaces, w.tables.Pods)
	if err := f(txn); err != nil {
		w.Fatal(err)
	}
	txn.Commit()
}

func (w *world) pod(p cluster.Pod) {
	w.Helper()
	w.change(func(txn statedb.WriteTxn) error {
		_, _, err := w.tables.Pods.Insert(txn, &p)
		return err
	})
}

func (w *world) deletePod(name string) {
	w.Helper()
	w.change(func(txn statedb.WriteTxn) error {
		_, _, err := w.tables.Pods.Delete(txn, &cluster.Pod{Namespace: "x", Name: name})
		return err
	})
}

func (w *world) node(n cluster.Node) {
	w.Helper()
	w.change(func(txn statedb.WriteTxn) error {
		_, _, err := w.tables.Nodes.Insert(txn, &n)
		return err
	})
}

func (w *world) namespace(labels map[string]string) {
	w.Helper()
	w.change(func(txn statedb.WriteTxn) error {
		_, _, err := w.tables.Namespaces.Insert(txn, &cluster.Namespace{Name: "x", Labels: labels})
		return err
	})
}

// expect waits until the dump of both tables, without reserved rows, is want.
func (w *world) expect(want ...string) {
	w.Helper()
	deadline := time.Now().Add(4 * time.Second)
	for {
		r := w.db.ReadTxn()
		var got []string
		ids, changed := w.ids.Identities().LowerBoundWatch(r, ByID(First))
		for i := range ids {
			got = append(got, strings.Join(i.TableRow(), " "))
		}
		addrs, changed2 := w.ids.Addresses().AllWatch(r)
		for a := range addrs {
			got = append(got, strings.Join(a.TableRow(), " "))
		}
		if slices.Equal(got, want) {
			return
		}
		select {
		case <-changed:
		case <-changed2:
		case <-time.After(time.Until(deadline)):
			w.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

const (
	inX  = "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=x k8s:io.kubernetes.pod.namespace=x"
	appA = "k8s:app=a " + inX
)

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestLabels(t *testing.T) {
	pod := &cluster.Pod{Namespace: "x", Name: "a", ServiceAccount: "reader", Labels: map[string]string{
		"app": "a", "pod-template-hash": "1",
		"io.kubernetes.pod.namespace":               "kube-system",
		"io.cilium.k8s.namespace.labels.team":       "root",
		"io.cilium.k8s.policy.serviceaccount":       "admin",
		"io.cilium.k8s.policy.cluster":              "other",
		"io.cilium.k8s.namespace.labels.x.y/z":      "1",
		"io.kubernetes.pod.namespaces-are-not-mine": "ok",
	}}
	want := []string{
		"k8s:app=a", "k8s:io.cilium.k8s.namespace.labels.team=blue", "k8s:io.cilium.k8s.policy.cluster=east",
		"k8s:io.cilium.k8s.policy.serviceaccount=reader",
		"k8s:io.kubernetes.pod.namespace=x", "k8s:io.kubernetes.pod.namespaces-are-not-mine=ok",
		"k8s:pod-template-hash=1",
	}
	if got := Labels(pod, &cluster.Namespace{Name: "x", Labels: map[string]string{"team": "blue"}},
		"east"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFollowsCluster(t *testing.T) {
	w := newWorld(t, "")
	w.known()
	a := cluster.Pod{Namespace: "x", Name: "a", NodeName: "n1", Labels: map[string]string{"app": "a"}}
	w.pod(a) // before it has an address
	w.expect("65536 " + appA + " 1")
	if id, ok := w.ids.Pod(w.db.ReadTxn(), "x", "a"); !ok || id.ID != First {
		t.Errorf("pod without address: got %v, %v", id, ok)
	}
	a.Addresses = addrs("10.0.1.2", "fd00::2")
	w.pod(a)
	b := a
	b.Name, b.Addresses = "b", addrs("10.0.1.3")
	w.pod(b)
	w.expect("65536 "+appA+" 2", "10.0.1.2 65536 pod x/a", "10.0.1.3 65536 pod x/b", "fd00::2 65536 pod x/a")

	// A change of the pod's labels costs that pod.
	b.Labels = map[string]string{"app": "b"}
	w.pod(b)
	w.expect("65536 "+appA+" 1", "65537 k8s:app=b "+inX+" 1",
		"10.0.1.2 65536 pod x/a", "10.0.1.3 65537 pod x/b", "fd00::2 65536 pod x/a")

	// A change of the namespace's costs its pods; other namespaces' stay.
	w.namespace(map[string]string{"team": "blue"})
	const blue = "k8s:io.cilium.k8s.namespace.labels.team=blue k8s:io.kubernetes.pod.namespace=x"
	w.expect("65536 "+appA+" 0", "65537 k8s:app=b "+inX+" 0", "65538 k8s:app=a "+blue+" 1",
		"65539 k8s:app=b "+blue+" 1",
		"10.0.1.2 65538 pod x/a", "10.0.1.3 65539 pod x/b", "fd00::2 65538 pod x/a")

	// Pods that ended and pods on the host's network own no address.
	b.Phase = "Failed"
	w.pod(b)
	a.HostNetwork = true
	w.pod(a)
	w.expect("65536 "+appA+" 0", "65537 k8s:app=b "+inX+" 0", "65538 k8s:app=a "+blue+" 0",
		"65539 k8s:app=b "+blue+" 0")
	if id, ok := w.ids.Pod(w.db.ReadTxn(), "x", "a"); !ok || id.ID != Host {
		t.Errorf("pod on this host's network: got %v", id)
	}
}

func TestNodes(t *testing.T) {
	w := newWorld(t, "")
	w.known()
	w.node(cluster.Node{Name: "n1", Addresses: addrs("192.168.0.1"),
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}})
	w.node(cluster.Node{Name: "n2", Addresses: addrs("192.168.0.2", "fd01::2"),
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("fd00:2::/64")}})
	w.pod(cluster.Pod{Namespace: "x", Name: "a", Labels: map[string]string{"app": "a"}, Addresses: addrs("10.0.1.2")})
	w.expect("65536 "+appA+" 1", "10.0.1.1 1 node n1", "10.0.1.2 65536 pod x/a", "192.168.0.1 1 node n1",
		"192.168.0.2 6 node n2",
		"fd00:2::1 6 node n2", "fd01::2 6 node n2")
	// A node that moves leaves nothing behind.
	w.node(cluster.Node{Name: "n2", Addresses: addrs("192.168.0.9")})
	w.expect("65536 "+appA+" 1", "10.0.1.1 1 node n1", "10.0.1.2 65536 pod x/a", "192.168.0.1 1 node n1",
		"192.168.0.9 6 node n2")
}

// An address goes from a deleted pod to a new one; the deletion may be seen
// after the new pod.
func TestAddressIsReused(t *testing.T) {
	w := newWorld(t, "")
	w.known()
	w.pod(cluster.Pod{Namespace: "x", Name: "old", Labels: map[string]string{"app": "a"}, Addresses: addrs("10.0.1.2")})
	w.pod(cluster.Pod{Namespace: "x", Name: "new", Labels: map[string]string{"app": "b"}, Addresses: addrs("10.0.1.2")})
	w.expect("65536 "+appA+" 1", "65537 k8s:app=b "+inX+" 1", "10.0.1.2 65537 pod x/new")
	w.deletePod("old")
	w.expect("65536 "+appA+" 0", "65537 k8s:app=b "+inX+" 1", "10.0.1.2 65537 pod x/new")
	w.deletePod("new")
	w.expect("65536 "+appA+" 0", "65537 k8s:app=b "+inX+" 0")
}

// Within the grace a label set finds its number again, after it the number is
// not given to others.
func TestGrace(t *testing.T) {
	w := newWorld(t, "")
	w.known()
	a := cluster.Pod{Namespace: "x", Name: "a", Labels: map[string]string{"app": "a"}}
	w.pod(a)
	w.expect("65536 " + appA + " 1")
	w.deletePod("a")
	w.expect("65536 " + appA + " 0")
	w.pod(a)
	w.expect("65536 " + appA + " 1")
	w.deletePod("a")
	w.expect("65536 " + appA + " 0")
	w.now.Add(3600)
	w.expect()
	w.pod(a)
	w.expect("65537 " + appA + " 1")
}

// An agent that starts again, also after it was killed, numbers as before.
func TestRestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "identities.json")
	w := newWorld(t, file)
	w.known()
	pod := func(app string) cluster.Pod {
		return cluster.Pod{Namespace: "x", Name: app, Labels: map[string]string{"app": app}}
	}
	w.pod(pod("a"))
	w.expect("65536 " + appA + " 1")
	w.pod(pod("b"))
	w.expect("65536 "+appA+" 1", "65537 k8s:app=b "+inX+" 1")
	killed, err := os.ReadFile(file) // the state as kill -9 leaves it here
	if err != nil {
		t.Fatal(err)
	}
	w.stop()

	if err := os.WriteFile(file, append(killed, `{"id":65538,"lab`...), 0o600); err != nil {
		t.Fatal(err)
	}
	w = newWorld(t, file)
	w.expect("65536 "+appA+" 0", "65537 k8s:app=b "+inX+" 0")
	// Until the cluster is known, nothing expires.
	w.now.Add(3600)
	w.pod(pod("b"))
	w.expect("65536 "+appA+" 0", "65537 k8s:app=b "+inX+" 1")
	if ok, _ := w.ids.Identities().Initialized(w.db.ReadTxn()); ok {
		t.Error("initialized before the cluster is")
	}
	w.known()
	w.expect("65537 k8s:app=b " + inX + " 1")
	if ok, _ := w.ids.Addresses().Initialized(w.db.ReadTxn()); !ok {
		t.Error("not initialized after the cluster is")
	}
	w.pod(pod("c"))
	w.expect("65537 k8s:app=b "+inX+" 1", "65538 k8s:app=c "+inX+" 1")
	w.stop()

	w = newWorld(t, file)
	w.pod(pod("c"))
	w.expect("65536 "+appA+" 0", "65537 k8s:app=b "+inX+" 0", "65538 k8s:app=c "+inX+" 1")
}

// A state file that makes no sense is begun anew, and is good again then.
func TestBrokenState(t *testing.T) {
	for name, text := range map[string]string{
		"not JSON":      "what\n",
		"other version": `{"version":9}` + "\n",
		"reserved":      `{"version":1}` + "\n" + `{"id":1,"labels":["a"]}` + "\n",
		"number twice": `{"version":1}` + "\n" + `{"id":65536,"labels":["a"]}` + "\n" +
			`{"id":65536,"labels":["b"]}` + "\n",
		"labels twice": `{"version":1}` + "\n" + `{"id":65536,"labels":["a"]}` + "\n" +
			`{"id":65537,"labels":["a"]}` + "\n",
		"not sorted":     `{"version":1}` + "\n" + `{"id":65536,"labels":["b","a"]}` + "\n",
		"only a torn on": `{"vers`,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "identities.json")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, file)
			w.known()
			w.pod(cluster.Pod{Namespace: "x", Name: "a", Labels: map[string]string{"app": "a"}})
			w.expect("65536 " + appA + " 1")
			w.stop()
			w = newWorld(t, file)
			w.expect("65536 " + appA + " 0")
		})
	}
}

// The file grows by a line for each number, and shrinks again.
func TestStoreIsCompacted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "identities.json")
	w := newWorld(t, file)
	w.known()
	for round := range 20 {
		w.change(func(txn statedb.WriteTxn) error {
			for i := range 100 {
				p := &cluster.Pod{Namespace: "x", Name: fmt.Sprint(i),
					Labels: map[string]string{"n": fmt.Sprint(round*100 + i)}}
				if _, _, err := w.tables.Pods.Insert(txn, p); err != nil {
					return err
				}
			}
			return nil
		})
		last := []string{fmt.Sprintf("k8s:n=%d", round*100+99)}
		last = append(last, strings.Fields(inX)...)
		slices.Sort(last)
		deadline := time.Now().Add(4 * time.Second)
		for {
			if _, _, ok := w.ids.Identities().Get(w.db.ReadTxn(), byLabels(last)); ok {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("round %d: no identity", round)
			}
			time.Sleep(time.Millisecond)
		}
		w.now.Add(3600)
	}
	w.stop()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(data), "\n"); lines > 1600 {
		t.Errorf("got %d lines after 2000 numbers of which at most 200 live", lines)
	}
	k := newKnown()
	if _, err := ledger.Decode(data, First, k.add); err != nil || len(k.rows) < 100 {
		t.Errorf("got %d identities, %v from the file", len(k.rows), err)
	}
}
