package policy_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"sigs.k8s.io/yaml"

	"myelin/policy"
	"myelin/policy/parse"
	"myelin/test/policy/policytest"
)

// keeper keeps what tables of its own have in a file.
type keeper struct {
	db     *statedb.DB
	tables policy.Tables
	last   *policy.LastGood
	log    bytes.Buffer
}

func newKeeper(t *testing.T, path string) *keeper {
	t.Helper()
	k := &keeper{db: statedb.New()}
	var err error
	if k.tables, err = policy.NewTables(k.db); err != nil {
		t.Fatal(err)
	}
	k.last = policy.OpenLastGood(path, k.db, k.tables, slog.New(slog.NewTextHandler(&k.log, nil)))
	return k
}

// keep puts objects into the tables, and has them kept.
func (k *keeper) keep(t *testing.T, policies []*policy.Object, groups []*policy.Group) {
	t.Helper()
	txn := k.db.WriteTxn(k.tables.Policies, k.tables.Groups)
	for _, o := range policies {
		if _, _, err := k.tables.Policies.Insert(txn, o); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range groups {
		if _, _, err := k.tables.Groups.Insert(txn, g); err != nil {
			t.Fatal(err)
		}
	}
	txn.Commit()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.last.Run(ctx) }()
	time.Sleep(50 * time.Millisecond)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// What is kept of policies is all that they say, nil and empty lists too; what is
// closed is not kept.
func TestLastGood(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last.json")
	var policies []*policy.Object
	var groups []*policy.Group
	since := time.Unix(1000, 0).UTC()
	for _, kind := range policytest.Kinds() {
		raw, err := yaml.YAMLToJSON(policytest.Good(t, "../test/policy/policytest/testdata/rejected", kind))
		if err != nil {
			t.Fatal(err)
		}
		if kind == parse.GroupKind {
			g, _ := parse.ReadGroup(raw, parse.Origin{Now: since})
			closed := *g
			closed.Name, closed.InForce = "closed", policy.Closed
			groups = append(groups, g, &closed)
			continue
		}
		for of, read := range parse.Readers() {
			if strings.HasSuffix(of, "/"+kind) {
				o, faults := read(raw, parse.Origin{Now: since, Source: "test"})
				if len(faults) > 0 {
					t.Fatal(faults)
				}
				refused := o.Refused(o, "some problem", since)
				refused.Ref.Name, refused.Specs = "refused", slices.Clone(o.Specs)
				for i := range refused.Specs {
					refused.Specs[i].Ref = refused.Ref
				}
				closed := *o
				closed.Ref.Name, closed.InForce = "closed", policy.Closed
				policies = append(policies, o, refused, &closed)
			}
		}
	}
	first := newKeeper(t, path)
	first.keep(t, policies, groups)
	if o := first.last.Policy(policies[0].Ref); o != nil {
		t.Error("a source that has told all is told of what was before")
	}
	next := newKeeper(t, path)
	for _, o := range policies {
		got := next.last.Policy(o.Ref)
		if o.InForce == policy.Closed {
			if got != nil {
				t.Errorf("%s is closed, and kept", o.Ref)
			}
			continue
		}
		want := *o
		want.Problem = ""
		if got == nil || !reflect.DeepEqual(got, &want) {
			t.Errorf("%s: kept is\n%+v, not\n%+v", o.Ref, got, &want)
		}
	}
	if g := next.last.Group("office"); g == nil || !g.Equal(groups[0]) || next.last.Group("closed") != nil {
		t.Errorf("the group that is kept is %+v", g)
	}
}

// A file that can't be read is none, and said so.
func TestLastGoodBroken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last.json")
	for _, text := range []string{"", "{", `{"format": 2}`,
		`{"format": 1, "policies": [{"ref": {"kind": "NetworkPolicy"}}]}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		k := newKeeper(t, path)
		k.last.All(func(o *policy.Object) { t.Errorf("%q: kept is %s", text, o.Ref) },
			func(g *policy.Group) { t.Errorf("%q: kept is %s", text, g.Name) })
		if !strings.Contains(k.log.String(), "can't be read") {
			t.Errorf("%q: the log says %q", text, k.log.String())
		}
	}
	var none *policy.LastGood
	if none.Policy(policy.Ref{}) != nil || none.Group("") != nil {
		t.Error("nothing keeps something")
	}
}
