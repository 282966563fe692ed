package kube

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/parse"
)

// refusals are the rows of CiliumNetworkPolicies, without a server.
type refusals struct {
	*testing.T
	db     *statedb.DB
	tables policy.Tables
	last   *policy.LastGood
	kind   *kind
}

func newRefusals(t *testing.T, path string) *refusals {
	t.Helper()
	r := &refusals{T: t, db: statedb.New()}
	var err error
	if r.tables, err = policy.NewTables(r.db); err != nil {
		t.Fatal(err)
	}
	r.last = policy.OpenLastGood(path, r.db, r.tables, slog.New(slog.DiscardHandler))
	r.kind = &kind{GroupVersionKind: schema.GroupVersion{Group: "cilium.io",
		Version: "v2"}.WithKind("CiliumNetworkPolicy")}
	r.kind.convert = strict(parse.Readers()["cilium.io/v2/CiliumNetworkPolicy"])
	r.kind.rows = policyRows(r.tables, r.last, r.kind.Kind)
	return r
}

// apply makes the row of a version, as Source.commitKind does.
func (r *refusals) apply(text string) *policy.Object {
	r.Helper()
	var object raw
	if err := object.UnmarshalJSON([]byte(text)); err != nil {
		r.Fatal(err)
	}
	i, err := r.kind.item(&object, time.Unix(1, 0))
	if err != nil {
		r.Fatal(err)
	}
	txn := r.db.WriteTxn(r.tables.Policies)
	if len(i.faults) > 0 {
		r.kind.rows.refuse(txn, i.key(), i, time.Unix(2, 0))
	} else {
		r.kind.rows.put(txn, i.row)
	}
	txn.Commit()
	ref := policy.Ref{Kind: r.kind.Kind, Key: cluster.Key{Namespace: "shop", Name: "web"}}
	o, _, ok := r.tables.Policies.Get(r.db.ReadTxn(), policy.ObjectByRef(ref))
	if !ok {
		r.Fatal("there is no row")
	}
	return o
}

// A refused version leaves the last good one in force, for this agent and the next
// one; without one, what is understood of it is in force, closed.
func TestRefusedRows(t *testing.T) {
	const head = `{"apiVersion":"cilium.io/v2","kind":"CiliumNetworkPolicy",` +
		`"metadata":{"name":"web","namespace":"shop"},"spec":{"endpointSelector":{},`
	const good, bad = head + `"ingress":[{"fromEndpoints":[{}]}]}}`,
		head + `"ingress":[{"fromEndpoints":[{}],"bogus":1}],"egress":[{}]}}`
	path := filepath.Join(t.TempDir(), "last.json")
	r := newRefusals(t, path)
	if o := r.apply(bad); o.InForce != policy.Closed || o.Problem == "" || o.Specs[0].Isolates != [2]bool{true, true} ||
		len(o.Specs[0].Rules[0].Peers) != 0 {
		t.Errorf("new and refused: %+v", o)
	}
	if o := r.apply(good); o.InForce != policy.Newest || o.Problem != "" {
		t.Errorf("good: %+v", o)
	}
	lasting := func(o *policy.Object) bool {
		return o.InForce == policy.LastGoodVersion && o.Problem != "" && len(o.Specs[0].Rules) == 1 &&
			len(o.Specs[0].Rules[0].Peers) == 1
	}
	if o := r.apply(bad); !lasting(o) {
		t.Errorf("refused: %+v", o)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.last.Run(ctx) }()
	time.Sleep(50 * time.Millisecond)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if o := newRefusals(t, path).apply(bad); !lasting(o) {
		t.Errorf("refused, after a restart: %+v", o)
	}
}
