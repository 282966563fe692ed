package endpointslice

import (
	"cmp"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"myelin/cluster"
	"myelin/table"
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
type objects struct {
	services []*cluster.Service
	slices   []*cluster.EndpointSlice
	pods     []*cluster.Pod
	nodes    []*cluster.Node
}

func parse(t testing.TB, text string) (o objects) {
	t.Helper()
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var meta struct{ Kind string }
		if err := yaml.Unmarshal([]byte(doc), &meta); err != nil {
			t.Fatalf("%v of\n%s", err, doc)
		}
		switch meta.Kind {
		case "Service":
			o.services = append(o.services, decode(t, doc, cluster.FromService))
		case "EndpointSlice":
			o.slices = append(o.slices, decode(t, doc, cluster.FromEndpointSlice))
		case "Pod":
			o.pods = append(o.pods, decode(t, doc, cluster.FromPod))
		case "Node":
			o.nodes = append(o.nodes, decode(t, doc, cluster.FromNode))
		default:
			t.Fatalf("kind %q of\n%s", meta.Kind, doc)
		}
	}
	return o
}

func decode[T, R any](t testing.TB, doc string, convert func(*T, string) (*R, error)) *R {
	t.Helper()
	var object T
	if err := yaml.UnmarshalStrict([]byte(doc), &object); err != nil {
		t.Fatalf("%v of\n%s", err, doc)
	}
	row, err := convert(&object, "")
	if err != nil {
		t.Fatalf("%v of\n%s", err, doc)
	}
	return row
}

// set makes the cluster equal to objects, and the slices follow.
func (w *world) set(t testing.TB, o objects) {
	t.Helper()
	txn := w.DB.WriteTxn(w.Tables.Services, w.Tables.Slices, w.Tables.Pods, w.Tables.Nodes)
	replace(t, txn, w.Tables.Services, w.Tables.Services.All(txn), o.services, (*cluster.Service).Equal)
	replace(t, txn, w.Tables.Slices, foreign(w.Tables.Slices.All(txn)), o.slices, (*cluster.EndpointSlice).Equal)
	replace(t, txn, w.Tables.Pods, w.Tables.Pods.All(txn), o.pods, (*cluster.Pod).Equal)
	replace(t, txn, w.Tables.Nodes, w.Tables.Nodes.All(txn), o.nodes, (*cluster.Node).Equal)
	txn.Commit()
	w.round(w.follow)
}

func replace[R any](t testing.TB, txn statedb.WriteTxn, rows statedb.RWTable[*R], have iter.Seq2[*R, statedb.Revision], want []*R, same func(a, b *R) bool) {
	t.Helper()
	if _, err := table.Replace(txn, rows, have, want, same); err != nil {
		t.Fatal(err)
	}
}

// foreign leaves out what the controller made, as a source does.
func foreign(rows iter.Seq2[*cluster.EndpointSlice, statedb.Revision]) iter.Seq2[*cluster.EndpointSlice, statedb.Revision] {
	return func(yield func(*cluster.EndpointSlice, statedb.Revision) bool) {
		for row, revision := range rows {
			if !made(row) && !yield(row, revision) {
				return
			}
		}
	}
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

// named are the addresses of tests: "@pod3" is the third of the pods'.
func named(text string, v6, quote bool) string {
	networks := map[string][2]string{
		"vip": {"10.96.0.0", "fd00:96::"}, "pod": {"10.0.1.0", "fd00:1::"}, "node": {"172.18.0.0", "fd00:18::"},
	}
	family := 0
	if v6 {
		family = 1
	}
	text = strings.ReplaceAll(text, "@family", [2]string{"IPv4", "IPv6"}[family])
	name := regexp.MustCompile(`@([a-z]+)(\d+)`)
	return name.ReplaceAllStringFunc(text, func(s string) string {
		m := name.FindStringSubmatch(s)
		base := netip.MustParseAddr(networks[m[1]][family]).AsSlice()
		n, err := strconv.Atoi(m[2])
		if err != nil {
			return s
		}
		base[len(base)-1] = byte(n)
		addr, _ := netip.AddrFromSlice(base)
		if quote {
			return strconv.Quote(addr.String())
		}
		return addr.String()
	})
}

// TestSteps reads clusters as they are in testdata: N/objects are those of step
// N, N/want is what slices there are then, and from the second step on how many
// were written or deleted for it. Each runs for both families.
func TestSteps(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("found %d archives: %v", len(archives), err)
	}
	for _, path := range archives {
		for _, family := range []string{"IPv4", "IPv6"} {
			t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar")+"/"+family, func(t *testing.T) {
				t.Parallel()
				archive, err := txtar.ParseFile(path)
				if err != nil {
					t.Fatal(err)
				}
				steps(t, archive, family == "IPv6")
			})
		}
	}
}

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
		w.set(t, parse(t, named(strings.TrimSuffix(always+string(f.Data), "---\n"), v6, true)))
		got := w.dump()
		if step != "1" {
			got = strings.TrimSpace(fmt.Sprintf("%s\nwrote %d", got, w.written(before)))
		}
		if want := strings.TrimSpace(named(wanted(archive, step), v6, false)); sorted(got) != sorted(want) {
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

func wanted(archive *txtar.Archive, step string) string {
	for _, f := range archive.Files {
		if f.Name == step+"/want" {
			return string(f.Data)
		}
	}
	return "no want"
}
