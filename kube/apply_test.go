package kube

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"myelin/cluster"
	"myelin/policy"
)

// told is a source that is told by hand what a server says.
type told struct {
	*testing.T
	*Source
}

func newTold(t *testing.T) *told {
	t.Helper()
	db := statedb.New()
	c, err := cluster.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	server := &Server{contact: newContact()}
	if server.config, err = fromAccount(Options{Account: account(t), Host: "192.0.2.1"}); err != nil {
		t.Fatal(err)
	}
	s, err := New(Params{DB: db, Tables: c, Policies: p, Server: server, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return time.Unix(1, 0) }})
	if err != nil {
		t.Fatal(err)
	}
	return &told{T: t, Source: s}
}

func (s *told) kind(name string) *kind {
	s.Helper()
	for _, k := range s.kinds {
		if k.Kind == name {
			return k
		}
	}
	s.Fatalf("no kind %s", name)
	return nil
}

// list is what the server has of a kind.
func (s *told) list(kind string, objects ...runtime.Object) {
	s.Helper()
	k := s.kind(kind)
	var items []any
	for _, o := range objects {
		i, err := k.item(o, s.Now())
		if err != nil {
			s.Fatal(err)
		}
		items = append(items, i)
	}
	if err := (&store{s.Source, k}).Replace(items, "1"); err != nil {
		s.Fatal(err)
	}
}

// write does what the writer would.
func (s *told) write() {
	if todo := s.take(); todo != nil {
		s.commit(todo)
	}
}

func (s *told) names() string {
	var names []string
	txn := s.DB.ReadTxn()
	for n := range s.Tables.Namespaces.All(txn) {
		names = append(names, n.Name+n.Labels["x"])
	}
	for o := range s.Policies.Policies.All(txn) {
		names = append(names, fmt.Sprintf("%s(%d,%t)", o.Ref.Name, len(o.Specs), o.Problem != ""))
	}
	for p := range s.problems.All(txn) {
		names = append(names, p.Object)
	}
	return strings.Join(names, " ")
}

func namespace(name, x string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"x": x}}}
}

func cnp(name, spec string) *raw {
	var r raw
	if err := r.UnmarshalJSON([]byte(fmt.Sprintf(`{"metadata": {"name": %q, "namespace": "default"}, "spec": %s}`, name,
		spec))); err != nil {
		panic(err)
	}
	return &r
}

// TestRelist: nothing is written before all is known; a list that is told again
// changes only what is another; what it lacks goes, with what was wrong with it.
func TestRelist(t *testing.T) {
	s := newTold(t)
	const good, bad = `{"endpointSelector": {}, "ingress": [{}]}`, `{"endpointSelector": {}, "ingres": []}`
	for _, k := range s.kinds {
		if s.names() != "" {
			t.Fatalf("written before all is known: %s", s.names())
		}
		if k.optional && k.Kind != "CiliumNetworkPolicy" {
			s.absent(k)
		} else {
			switch k.Kind {
			case "Namespace":
				s.list(k.Kind, namespace("a", "1"), namespace("b", "1"))
			case "CiliumNetworkPolicy":
				s.list(k.Kind, cnp("p", good), cnp("q", bad))
			default:
				s.list(k.Kind)
			}
		}
		s.write()
	}
	step := func(want string, changes bool) {
		t.Helper()
		before := s.Tables.Namespaces.Revision(s.DB.ReadTxn()) + s.Policies.Policies.Revision(s.DB.ReadTxn())
		s.write()
		if got := s.names(); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		if now := s.Tables.Namespaces.Revision(s.DB.ReadTxn()) + s.Policies.Policies.Revision(
			s.DB.ReadTxn()); (now != before) != changes {
			t.Errorf("revision %d became %d", before, now)
		}
	}
	step("a1 b1 p(1,false) q(1,true) CiliumNetworkPolicy default/q CiliumNetworkPolicy default/q", false)
	s.list("Namespace", namespace("b", "1"), namespace("a", "1"))
	s.list("CiliumNetworkPolicy", cnp("q", bad), cnp("p", good))
	step("a1 b1 p(1,false) q(1,true) CiliumNetworkPolicy default/q CiliumNetworkPolicy default/q", false)
	s.list("Namespace", namespace("b", "2"), namespace("c", "1"))
	step("b2 c1 p(1,false) q(1,true) CiliumNetworkPolicy default/q CiliumNetworkPolicy default/q", true)
	s.list("CiliumNetworkPolicy", cnp("p", bad))
	step("b2 c1 p(1,true) CiliumNetworkPolicy default/p CiliumNetworkPolicy default/p", true)
	s.list("CiliumNetworkPolicy", cnp("p", good))
	step("b2 c1 p(1,false)", true)
	s.list("Namespace")
	s.list("CiliumNetworkPolicy")
	step("", true)
	if ok, _ := s.Tables.Pods.Initialized(s.DB.ReadTxn()); !ok {
		t.Error("tables are not initialized")
	}
}
