package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/config"
	"myelin/kube/manifests"
	"myelin/policy"
)

// While the manifests are being read, an object that is rejected is nothing that the start waits for: only a directory
// that can't be read is.
func TestMissingWhileReading(t *testing.T) {
	dir, db := filepath.Join(t.TempDir(), "manifests"), statedb.New()
	tables, err := cluster.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	policies, err := policy.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	a := agentWith(config.Default())
	a.DB, a.Cluster, a.policies.tables = db, tables, policies
	a.Config.Myelin.NodeName = "node1"
	if a.source.manifests, err = manifests.New(manifests.Params{
		DB: db, Tables: tables, Policies: policies, Dir: dir + "/", Log: slog.New(slog.DiscardHandler), Now: time.Now,
	}); err != nil {
		t.Fatal(err)
	}
	rejected := &cluster.Problem{File: "a.yaml", Object: "NetworkPolicy demo/a", Field: "spec", Reason: "bad"}
	unreadable := &cluster.Problem{File: dir, Reason: "can't be read, waiting for it: " + os.ErrNotExist.Error()}
	for _, c := range []struct {
		name     string
		problems []*cluster.Problem
		want     string
	}{
		{"nothing is wrong", nil, ""},
		{"an object is rejected", []*cluster.Problem{rejected}, ""},
		{"no directory", []*cluster.Problem{unreadable}, "manifests: " + dir + ": can't be read"},
		{"both", []*cluster.Problem{rejected, unreadable}, "manifests: " + dir + ": can't be read"},
	} {
		why, help := a.own.missing(db.ReadTxn(), c.problems, false)
		if !strings.HasPrefix(why, c.want) || (why == "") != (c.want == "") || (help == "") != (why == "") {
			t.Errorf("%s: waits for %q (%q), want %q", c.name, why, help, c.want)
		}
	}
}
