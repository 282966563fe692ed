package service

import (
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"myelin/cluster"
	"myelin/table"
)

// world is a cluster as one node, n1, sees it.
type world struct {
	*Services
	follow *cluster.Follower
}

func newWorld(t testing.TB, config Config, dir string) *world {
	t.Helper()
	db := statedb.New()
	tables, err := cluster.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Params{DB: db, Tables: tables, Config: config, Node: "n1", Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Tables.Follow(s.DB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.serviceIDs.close(); s.backendIDs.close() })
	return &world{Services: s, follow: f}
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

// set makes the cluster equal to objects, and the desired state follow.
func (w *world) set(t testing.TB, o objects) {
	t.Helper()
	txn := w.DB.WriteTxn(w.Tables.Services, w.Tables.Slices, w.Tables.Pods, w.Tables.Nodes)
	replace(t, txn, w.Tables.Services, o.services, (*cluster.Service).Equal)
	replace(t, txn, w.Tables.Slices, o.slices, (*cluster.EndpointSlice).Equal)
	replace(t, txn, w.Tables.Pods, o.pods, (*cluster.Pod).Equal)
	replace(t, txn, w.Tables.Nodes, o.nodes, (*cluster.Node).Equal)
	txn.Commit()
	w.round(w.follow)
}

func replace[R any](t testing.TB, txn statedb.WriteTxn, rows statedb.RWTable[*R], want []*R, same func(a, b *R) bool) {
	t.Helper()
	if _, err := table.Replace(txn, rows, rows.All(txn), want, same); err != nil {
		t.Fatal(err)
	}
}

// dump is the desired state as text, a row a line.
func (w *world) dump() string {
	r := w.DB.ReadTxn()
	var lines []string
	add := func(kind string, row []string) {
		lines = append(lines, strings.Join(strings.Fields(kind+" "+strings.Join(row, " ")), " "))
	}
	for s := range w.Desired.Services.All(r) {
		add("service", s.TableRow())
	}
	for f := range w.Desired.Frontends.All(r) {
		add("frontend", f.TableRow())
	}
	for b := range w.Desired.Backends.All(r) {
		add("backend", b.TableRow())
	}
	for c := range w.Desired.Checks.All(r) {
		add("check", c.TableRow())
	}
	return strings.Join(lines, "\n")
}

// written counts the rows that are not those of an earlier time.
func (w *world) written(before statedb.ReadTxn) string {
	r := w.DB.ReadTxn()
	return fmt.Sprintf("wrote %d services %d frontends %d backends",
		differ(w.Desired.Services.All(before), w.Desired.Services.All(r)),
		differ(w.Desired.Frontends.All(before), w.Desired.Frontends.All(r)),
		differ(w.Desired.Backends.All(before), w.Desired.Backends.All(r)))
}

func differ[R comparable](before, after iter.Seq2[R, statedb.Revision]) int {
	rows, n := map[R]bool{}, 0
	for row := range before {
		rows[row] = true
	}
	for row := range after {
		if !rows[row] {
			n++
		}
		delete(rows, row)
	}
	return max(n, len(rows))
}

// named are the addresses of tests: "@pod3" is the third of the pods', with
// ":80" after it an address with a port.
func named(text string, v6, quote bool) string {
	networks := map[string][2]string{
		"vip": {"10.96.0.0", "fd00:96::"}, "ext": {"192.0.2.0", "2001:db8:2::"}, "lb": {"198.51.100.0", "2001:db8:3::"},
		"pod": {"10.0.1.0", "fd00:1::"}, "node": {"172.18.0.0", "fd00:18::"}, "any": {"0.0.0.0", "::"},
		"lo": {"127.0.0.1", "::1"},
	}
	family := 0
	if v6 {
		family = 1
	}
	text = strings.ReplaceAll(text, "@family", [2]string{"IPv4", "IPv6"}[family])
	return regexp.MustCompile(`@([a-z]+)(\d*)(:\d+)?`).ReplaceAllStringFunc(text, func(s string) string {
		m := regexp.MustCompile(`@([a-z]+)(\d*)(:(\d+))?`).FindStringSubmatch(s)
		base := netip.MustParseAddr(networks[m[1]][family]).AsSlice()
		if n, err := strconv.Atoi(m[2]); err == nil {
			base[len(base)-1] = byte(n)
		}
		addr, _ := netip.AddrFromSlice(base)
		if port, err := strconv.Atoi(m[4]); err == nil {
			return netip.AddrPortFrom(addr, uint16(port)).String()
		}
		if quote {
			return strconv.Quote(addr.String())
		}
		return addr.String()
	})
}

// TestSteps reads clusters as they are in testdata: N/objects are those of step
// N, N/want is what this node is to do then, and from the second step on how
// many rows were written for it. Each runs for both families.
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
	var config Config
	if line, _, ok := strings.Cut(string(archive.Comment), "\n"); ok && strings.Contains(string(archive.Comment), "\nconfig: ") {
		_, text, _ := strings.Cut(string(archive.Comment), "\nconfig: ")
		if err := yaml.UnmarshalStrict([]byte(text), &config); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	w := newWorld(t, config, t.TempDir())
	for _, f := range archive.Files {
		step, name, _ := strings.Cut(f.Name, "/")
		if name != "objects" {
			continue
		}
		before := w.DB.ReadTxn()
		w.set(t, parse(t, named(string(f.Data), v6, true)))
		got := w.dump()
		if step != "1" {
			got = strings.TrimSpace(got + "\n" + w.written(before))
		}
		if want := strings.TrimSpace(named(wanted(archive, step), v6, false)); sorted(got) != sorted(want) {
			t.Fatalf("step %s: got\n%s\nwant\n%s", step, got, want)
		}
	}
}

// sorted puts lines in an order that is the same for both families.
func sorted(text string) string {
	return strings.Join(slices.Sorted(strings.SplitSeq(text, "\n")), "\n")
}

func wanted(archive *txtar.Archive, step string) string {
	for _, f := range archive.Files {
		if f.Name == step+"/want" {
			return string(f.Data)
		}
	}
	return "no want"
}

// Every field but the status counts in Equal, or a change of it would never be
// written.
func TestEveryFieldCounts(t *testing.T) {
	everyFieldCounts(t, (*Service).Equal)
	everyFieldCounts(t, (*Frontend).Equal)
}

func everyFieldCounts[T any](t *testing.T, equal func(a, b *T) bool) {
	t.Helper()
	for i := range reflect.TypeFor[T]().NumField() {
		var changed, base T
		field := reflect.ValueOf(&changed).Elem().Field(i)
		name := reflect.TypeFor[T]().Field(i).Name
		switch field.Interface().(type) {
		case reconciler.Status:
			field.Set(reflect.ValueOf(reconciler.StatusDone()))
		case netip.AddrPort:
			field.Set(reflect.ValueOf(netip.MustParseAddrPort("[::]:1")))
		case cluster.Key:
			field.Set(reflect.ValueOf(cluster.Key{Name: "x"}))
		default:
			switch field.Kind() {
			case reflect.String:
				field.SetString("x")
			case reflect.Bool:
				field.SetBool(true)
			case reflect.Int, reflect.Int64:
				field.SetInt(1)
			case reflect.Uint8, reflect.Uint16, reflect.Uint32:
				field.SetUint(1)
			case reflect.Slice:
				field.Set(reflect.MakeSlice(field.Type(), 1, 1))
			default:
				t.Fatalf("%T.%s: no value of %s to try", base, name, field.Type())
			}
		}
		if equal(&changed, &base) != (name == "Status") || !equal(&changed, &changed) {
			t.Errorf("%T: a change of %s is not judged right", base, name)
		}
	}
}
