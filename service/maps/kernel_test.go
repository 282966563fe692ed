package maps

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"myelin/cluster/clustertest"
	"myelin/service"
	"myelin/service/servicetest"
)

// TestMaps writes the clusters of testdata to maps, step by step. The maps must equal what the tables say, and the text
// N/maps if there is one, and packets may never find an incomplete state.
func TestMaps(t *testing.T) { clustertest.ArchivesIn(t, "../testdata", mapSteps) }

func mapSteps(t *testing.T, archive *txtar.Archive, v6 bool) {
	t.Helper()
	r := newRig(t, servicetest.ConfigOf(t, archive), small())
	r.backendsFirst = v6
	for _, f := range archive.Files {
		step, name, _ := strings.Cut(f.Name, "/")
		if name != "objects" {
			continue
		}
		r.Set(t, clustertest.Parse(t, clustertest.Named(string(f.Data), v6, true)))
		writes := 0
		r.before = func(string) error { writes++; r.whole(t); return nil }
		if err := r.sync(); err != nil {
			t.Fatalf("step %s: %v", step, err)
		}
		r.whole(t)
		r.counted(t)
		got := r.maps(t)
		if want := r.rows(); got != want {
			t.Fatalf("step %s: got\n%s\nthe tables say\n%s", step, got, want)
		}
		for _, f := range archive.Files {
			if want := servicetest.Sorted(strings.TrimSpace(clustertest.Named(string(f.Data), v6,
				false))); f.Name == step+"/maps" && got != want {
				t.Fatalf("step %s: got\n%s\nwant\n%s", step, got, want)
			}
		}
		// A new agent writes nothing.
		writes = 0
		r.agent(t, r.datapath)
		r.before = func(op string) error { t.Errorf("step %s: %s by another agent", step, op); return nil }
		r.again(t)
	}
}

// An address that another Service takes over leads to the backends of one of the two, and never to one's backends under
// the other's number.
func TestTakenOver(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		r := newRig(t, service.Config{}, small())
		text := func(name string, n int) string {
			return clustertest.Named(fmt.Sprintf(`kind: Service
metadata: {name: %[1]s}
spec: {clusterIP: @vip%[2]d, externalIPs: [@ext1], ports: [{port: 80}]}
---
kind: EndpointSlice
metadata: {name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: @family
ports: [{port: 8080}]
endpoints: [{addresses: [@pod%[2]d]}]
`, name, n), v6, true)
		}
		for _, o := range []string{text("a", 1) + "---\n" + text("b", 2), text("b", 2)} {
			r.before = func(string) error { r.whole(t); return nil }
			r.Set(t, clustertest.Parse(t, o))
			if err := r.sync(); err != nil {
				t.Fatal(err)
			}
			if got, want := r.maps(t), r.rows(); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		}
	}
}

// TestInterrupted changes one cluster to another, and each write in turn fails: alone, or with all that follow, as if
// the agent were killed. The maps are complete at all times; the same agent repairs them when it tries again, and so
// does a new one.
func TestInterrupted(t *testing.T) {
	type cluster struct {
		n              int
		weight, policy string
		first          int // of its pods
		annotations    string
		ranges         string
	}
	const deny = "service.cilium.io/src-ranges-policy: deny"
	const maglev = "service.cilium.io/lb-algorithm: maglev, service.cilium.io/forwarding-mode: dsr"
	three := cluster{3, "1", "Cluster", 0, "", ""}
	ranges := func(annotations, text string) cluster { return cluster{3, "1", "Cluster", 0, annotations, text} }
	for _, tc := range []struct {
		name     string
		from, to cluster
	}{
		{"grows", cluster{3, "1", "Cluster", 0, "", ""}, cluster{70, "1", "Cluster", 0, "", ""}},
		{"shrinks", cluster{70, "1", "Cluster", 0, "", ""}, cluster{3, "1", "Cluster", 0, "", ""}},
		{"sets part", cluster{40, "1", "Cluster", 0, "", ""}, cluster{40, "1", "Local", 0, "", ""}},
		{"sets join", cluster{40, "1", "Local", 0, "", ""}, cluster{40, "1", "Cluster", 0, "", ""}},
		{"weight", cluster{30, "1", "Local", 0, "", ""}, cluster{30, "3", "Local", 0, "", ""}},
		{"less weight", cluster{30, "3", "Cluster", 0, "", ""}, cluster{25, "1", "Local", 0, "", ""}},
		{"others", cluster{20, "7", "Cluster", 0, "", ""}, cluster{20, "7", "Cluster", 20, "", ""}},
		{"comes", cluster{}, cluster{40, "1", "Local", 0, "", ""}},
		{"goes", cluster{40, "1", "Local", 0, "", ""}, cluster{}},
		{"is restricted", three, ranges("", "10.0.0.0/8, 192.0.2.0/24, 2001:db8::/32")},
		{"opens", ranges("", "10.0.0.0/8, 2001:db8::/32"), three},
		{"for others", ranges("", "10.0.0.0/8, 192.0.2.0/24"), ranges("", "10.0.0.0/8, 2001:db8::/32")},
		{"for no client", ranges("", "10.0.0.0/8"), ranges("", "x")},
		{"maglev", three, cluster{4, "3", "Cluster", 0, maglev, ""}},
		{"maglev, one goes", cluster{30, "3", "Local", 0, maglev, ""}, cluster{29, "3", "Local", 0, maglev, ""}},
		{"maglev no more", cluster{3, "1", "Local", 0, maglev, ""},
			cluster{3, "1", "Cluster", 0, "service.cilium.io/lb-algorithm: least-conn", ""}},
		{"goes with ranges", ranges("", "10.0.0.0/8"), cluster{}},
		{"denies", ranges("", "8000::/2"), ranges(deny, "8000::/2")},
	} {
		for _, family := range []string{"IPv4", "IPv6"} {
			t.Run(tc.name+"/"+family, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, service.Config{}, small())
				state := func(c cluster) clustertest.Objects {
					if c.n == 0 {
						return clustertest.Objects{}
					}
					return clustertest.Parse(t, servicetest.SizedAs(family == "IPv6", c.n, c.first, c.weight, c.policy,
						c.annotations, c.ranges))
				}
				from, to := state(tc.from), state(tc.to)
				for _, crash := range []bool{false, true} {
					for n := 0; !interrupted(t, r, from, to, n, crash); n++ {
						r.backendsFirst = n%2 == 0
					}
				}
			})
		}
	}
}

// interrupted reports whether there were at most n writes.
func interrupted(t *testing.T, r *rig, from, to clustertest.Objects, n int, crash bool) (done bool) {
	t.Helper()
	r.before = nil
	r.Set(t, from)
	if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	r.Set(t, to)
	writes, failed := 0, ""
	r.before = func(op string) error {
		if writes++; writes == n+1 || crash && writes > n {
			failed = op
			return fmt.Errorf("write %d fails", n)
		}
		return nil
	}
	done = r.sync() == nil
	r.whole(t)
	r.counted(t)
	r.before = func(string) error { r.whole(t); return nil }
	if crash {
		r.agent(t, r.datapath)
		r.again(t)
	} else if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	r.counted(t)
	if !crash && strings.HasPrefix(failed, "delete") {
		r.again(t) // Prune finds what couldn't be deleted
	}
	if got, want := r.maps(t), r.rows(); got != want {
		t.Fatalf("write %d (%s) failed (crash: %v): got\n%s\nthe tables say\n%s", n, failed, crash, got, want)
	}
	return done
}
