// Package clustertest reads clusters of tests: archives of YAML with what is to
// come of it, step by step, each for both families.
package clustertest

import (
	"iter"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"myelin/cluster"
	"myelin/internal/table"
)

// Objects are the rows of some YAML.
type Objects struct {
	Services []*cluster.Service
	Slices   []*cluster.EndpointSlice
	Pods     []*cluster.Pod
	Nodes    []*cluster.Node
}

// Parse reads documents, which begin with their kind and have no apiVersion.
// What is refused fails the test.
func Parse(t testing.TB, text string) (o Objects) {
	t.Helper()
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var meta struct{ Kind string }
		if err := yaml.Unmarshal([]byte(doc), &meta); err != nil {
			t.Fatalf("%v of\n%s", err, doc)
		}
		switch meta.Kind {
		case "Service":
			o.Services = append(o.Services, decode(t, doc, cluster.FromService))
		case "EndpointSlice":
			o.Slices = append(o.Slices, decode(t, doc, cluster.FromEndpointSlice))
		case "Pod":
			o.Pods = append(o.Pods, decode(t, doc, cluster.FromPod))
		case "Node":
			o.Nodes = append(o.Nodes, decode(t, doc, cluster.FromNode))
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

// Replace makes the tables equal to the objects, as a source does. Slices that
// a source doesn't see, for others make them, stay; nil: it sees all.
func (o Objects) Replace(t testing.TB, db *statedb.DB, to cluster.Tables, unseen func(*cluster.EndpointSlice) bool) {
	t.Helper()
	txn := db.WriteTxn(to.Services, to.Slices, to.Pods, to.Nodes)
	defer txn.Commit()
	replace(t, txn, to.Services, nil, o.Services, (*cluster.Service).Equal)
	replace(t, txn, to.Slices, unseen, o.Slices, (*cluster.EndpointSlice).Equal)
	replace(t, txn, to.Pods, nil, o.Pods, (*cluster.Pod).Equal)
	replace(t, txn, to.Nodes, nil, o.Nodes, (*cluster.Node).Equal)
}

func replace[R any](t testing.TB, txn statedb.WriteTxn, rows statedb.RWTable[*R], unseen func(*R) bool, want []*R,
	same func(a, b *R) bool) {
	t.Helper()
	if _, err := table.Replace(txn, rows, without(rows.All(txn), unseen), want, same); err != nil {
		t.Fatal(err)
	}
}

func without[R any](rows iter.Seq2[R, statedb.Revision], unseen func(R) bool) iter.Seq2[R, statedb.Revision] {
	return func(yield func(R, statedb.Revision) bool) {
		for row, revision := range rows {
			if (unseen == nil || !unseen(row)) && !yield(row, revision) {
				return
			}
		}
	}
}

// Named puts addresses in the place of their names, and a family in that of
// @family: "@pod3" is the third of the pods', with ":80" after it an address
// with a port. quote is for YAML, which needs it around IPv6.
func Named(text string, v6, quote bool) string {
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
	name := regexp.MustCompile(`@([a-z]+)(\d*)(:(\d+))?`)
	return name.ReplaceAllStringFunc(text, func(s string) string {
		m := name.FindStringSubmatch(s)
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

// Archives runs a test with each archive of testdata, for both families, all in parallel.
func Archives(t *testing.T, run func(t *testing.T, archive *txtar.Archive, v6 bool)) {
	t.Helper()
	ArchivesIn(t, "testdata", run)
}

// ArchivesIn is Archives with those of another folder.
func ArchivesIn(t *testing.T, folder string, run func(t *testing.T, archive *txtar.Archive, v6 bool)) {
	t.Helper()
	archives, err := filepath.Glob(filepath.Join(folder, "*.txtar"))
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
				run(t, archive, family == "IPv6")
			})
		}
	}
}

// Wanted is the text of STEP/want, with addresses for their names.
func Wanted(archive *txtar.Archive, step string, v6 bool) string {
	for _, f := range archive.Files {
		if f.Name == step+"/want" {
			return strings.TrimSpace(Named(string(f.Data), v6, false))
		}
	}
	return "no want"
}
