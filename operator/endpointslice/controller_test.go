package endpointslice

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/rogpeppe/go-internal/txtar"

	"myelin/cluster"
	"myelin/cluster/clustertest"
	"myelin/internal/table"
)

// world is a cluster with a controller.
type world struct {
	*Controller
	follow *cluster.Follower
}

func newWorld(t testing.TB) *world {
	t.Helper()
	db := statedb.New()
	tables, err := cluster.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	c := New(Params{DB: db, Tables: tables, Log: slog.New(slog.DiscardHandler)})
	f, err := c.Tables.Follow(c.DB)
	if err != nil {
		t.Fatal(err)
	}
	return &world{Controller: c, follow: f}
}

// objects are the rows of some YAML.
type objects = clustertest.Objects

// set makes the cluster equal to objects, and the slices follow.
func (w *world) set(t testing.TB, o objects) {
	t.Helper()
	o.Replace(t, w.DB, w.Tables, made) // what the controller made is not in a source
	w.round(w.follow, new(table.Watch))
}

// dump is the slices as text, one a line.
func (w *world) dump() string {
	var lines []string
	for row := range w.Tables.Slices.All(w.DB.ReadTxn()) {
		whose := "made"
		if !made(row) {
			whose = "foreign"
		}
		parts := []string{whose, row.ServiceKey().String(), row.AddressType}
		for _, p := range row.Ports {
			parts = append(parts, p.String())
		}
		lines = append(lines, strings.Join(parts, " ")+":"+endpointText(row.Endpoints))
	}
	return strings.Join(lines, "\n")
}

func endpointText(endpoints []cluster.Endpoint) string {
	var b strings.Builder
	byPod := func(a, b cluster.Endpoint) int {
		return cmp.Or(cmp.Compare(a.Pod.Name, b.Pod.Name), a.Address.Compare(b.Address))
	}
	for _, e := range slices.SortedFunc(slices.Values(endpoints), byPod) {
		fmt.Fprintf(&b, " [%s %s", e.Pod.Name, e.Address)
		for word, is := range map[string]bool{"ready": e.Ready, "serving": e.Serving, "terminating": e.Terminating} {
			if is {
				fmt.Fprintf(&b, " %s", word)
			}
		}
		for _, text := range append([]string{e.Node, e.Zone}, append(e.ForZones, e.ForNodes...)...) {
			if text != "" {
				fmt.Fprintf(&b, " %s", text)
			}
		}
		b.WriteString("]")
	}
	return b.String()
}

// written counts the slices made here that were inserted, changed or deleted
// since an earlier time.
func (w *world) written(before statedb.ReadTxn) int {
	rows, n := map[cluster.Key]*cluster.EndpointSlice{}, 0
	for row := range w.Tables.Slices.All(before) {
		rows[row.Key()] = row
	}
	for row := range w.Tables.Slices.All(w.DB.ReadTxn()) {
		if made(row) && rows[row.Key()] != row {
			n++
		}
		delete(rows, row.Key())
	}
	for _, gone := range rows {
		if made(gone) {
			n++
		}
	}
	return n
}

// TestSteps reads clusters as they are in testdata: N/objects are those of step
// N, N/want is what slices there are then, and from the second step on how many
// were written or deleted for it. Each runs for both families.
func TestSteps(t *testing.T) { clustertest.Archives(t, steps) }

func steps(t *testing.T, archive *txtar.Archive, v6 bool) {
	t.Helper()
	w := newWorld(t)
	always := ""
	for _, f := range archive.Files {
		step, name, _ := strings.Cut(f.Name, "/")
		switch {
		case step == "always":
			always = string(f.Data) + "---\n"
			continue
		case name == "want":
			continue
		}
		before := w.DB.ReadTxn()
		w.set(t, clustertest.Parse(t, clustertest.Named(strings.TrimSuffix(always+string(f.Data), "---\n"), v6, true)))
		got := w.dump()
		if step != "1" {
			got = strings.TrimSpace(fmt.Sprintf("%s\nwrote %d", got, w.written(before)))
		}
		if want := clustertest.Wanted(archive, step, v6); sorted(got) != sorted(want) {
			t.Fatalf("step %s: got\n%s\nwant\n%s", step, got, want)
		}
	}
}

// sorted puts lines, and the words of each, in an order that is the same for
// both families.
func sorted(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		endpoints := strings.Split(strings.TrimSpace(line), " [")
		for i, e := range endpoints {
			words := strings.Fields(strings.TrimSuffix(e, "]"))
			slices.Sort(words)
			endpoints[i] = strings.Join(words, " ")
		}
		lines = append(lines, strings.Join(endpoints, "; "))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
