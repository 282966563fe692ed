package manifests

import (
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/rogpeppe/go-internal/txtar"

	"myelin/cluster"
	"myelin/policy"
)

// newSource makes a source over fresh tables.
func newSource(t testing.TB, dir string) *Source {
	t.Helper()
	db := statedb.New()
	tables, err := cluster.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	policies, err := policy.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Params{DB: db, Tables: tables, Policies: policies, Dir: dir, Log: slog.New(slog.DiscardHandler),
		Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// dump is the state as text, a row a line.
func dump(s *Source) string {
	var b strings.Builder
	r := s.DB.ReadTxn()
	line := func(fields ...string) {
		b.WriteString(strings.Join(slices.DeleteFunc(fields, func(f string) bool { return f == "" }), " ") + "\n")
	}
	for n := range s.Tables.Nodes.All(r) {
		line("node", n.Name, strings.Join(n.TableRow()[1:], " "))
	}
	for n := range s.Tables.Namespaces.All(r) {
		line(append([]string{"namespace"}, n.TableRow()...)...)
	}
	for p := range s.Tables.Pods.All(r) {
		line(append([]string{"pod", p.Key().String()}, p.TableRow()[2:]...)...)
	}
	for v := range s.Tables.Services.All(r) {
		line(append([]string{"service", v.Key().String()}, v.TableRow()[2:]...)...)
	}
	for v := range s.Tables.Slices.All(r) {
		line(append([]string{"slice", v.Key().String()}, v.TableRow()[2:]...)...)
	}
	for v := range s.Policies.Policies.All(r) {
		line(append([]string{"policy"}, v.TableRow()...)...)
		for _, spec := range v.Specs {
			for _, rule := range spec.Rules {
				line("rule", rule.Origin.String(), rule.String())
			}
		}
	}
	for v := range s.Policies.Groups.All(r) {
		line(append([]string{"group"}, v.TableRow()...)...)
	}
	unused := s.Unused()
	for _, k := range slices.Sorted(maps.Keys(unused)) {
		line("unused", k, fmt.Sprint(unused[k]))
	}
	for p := range s.Problems().All(r) {
		line("problem", p.Error())
	}
	var lines []string
	for l := range strings.Lines(b.String()) {
		lines = append(lines, strings.Join(strings.Fields(l), " "))
	}
	return strings.Join(lines, "\n")
}

// TestSteps reads directories as they are in testdata: N/path is a file of
// step N, N/want is what the tables hold then. `go test ./manifests -args update`
// writes the latter.
func TestSteps(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("found %d archives: %v", len(archives), err)
	}
	for _, path := range archives {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			s := newSource(t, dir)
			var files []txtar.File
			for i, f := range archive.Files {
				step, name, _ := strings.Cut(f.Name, "/")
				if name != "want" {
					files = append(files, txtar.File{Name: name, Data: f.Data})
					continue
				}
				populate(t, dir, files)
				files = nil
				s.refresh(nil, nil)
				got := dump(s)
				if flag.Arg(0) == "update" {
					archive.Files[i].Data = []byte(got + "\n")
				} else if want := strings.TrimSpace(string(f.Data)); got != want {
					t.Fatalf("step %s: got\n%s\nwant\n%s", step, got, want)
				}
			}
			if flag.Arg(0) != "update" {
				return
			}
			if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// populate makes dir hold these files and nothing else.
func populate(t *testing.T, dir string, files []txtar.File) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range files {
		write(t, filepath.Join(dir, f.Name), string(f.Data))
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Objects that don't change cost no write, whatever happens to their files.
func TestUnchangedIsNotWritten(t *testing.T) {
	dir := t.TempDir()
	s := newSource(t, dir)
	path := filepath.Join(dir, "a.yaml")
	write(t, path, node("n1", "10.0.1.0/24")+"---\n"+node("n2", "10.0.2.0/24"))
	s.refresh(nil, nil)
	revision := s.Tables.Nodes.Revision(s.DB.ReadTxn())
	write(t, path, "# moved\n"+node("n2", "10.0.2.0/24")+"---\n"+node("n1", "10.0.1.0/24"))
	s.refresh(nil, map[string]bool{path: true})
	if got := s.Tables.Nodes.Revision(s.DB.ReadTxn()); got != revision {
		t.Errorf("got revision %d after a change that says nothing, want %d", got, revision)
	}
	write(t, path, node("n1", "10.0.1.0/24")+"---\n"+node("n2", "10.0.3.0/24"))
	s.refresh(nil, map[string]bool{path: true})
	r := s.DB.ReadTxn()
	if got := s.Tables.Nodes.Revision(r); got != revision+1 {
		t.Errorf("got revision %d after one change, want %d", got, revision+1)
	}
}

func node(name, cidr string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s}\nspec: {podCIDRs: [%q]}\n", name, cidr)
}

// A problem keeps the time when it began, and goes when it is over.
func TestProblemSince(t *testing.T) {
	dir := t.TempDir()
	s := newSource(t, dir)
	now := time.Unix(1000, 0)
	s.Now = func() time.Time { return now }
	path := filepath.Join(dir, "a.yaml")
	write(t, path, node("n1", "bad"))
	s.refresh(nil, nil)
	now = time.Unix(2000, 0)
	write(t, path, node("n1", "bad")+"---\n"+node("n2", "worse"))
	s.refresh(nil, map[string]bool{path: true})
	var got []string
	for p := range s.Problems().All(s.DB.ReadTxn()) {
		got = append(got, fmt.Sprint(p.Object, " ", p.Since.Unix()))
	}
	slices.Sort(got)
	if want := []string{"Node n1 1000", "Node n2 2000"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	write(t, path, node("n1", "10.0.0.0/24"))
	s.refresh(nil, map[string]bool{path: true})
	if n := s.Problems().NumObjects(s.DB.ReadTxn()); n != 0 {
		t.Errorf("got %d problems after all were mended", n)
	}
}

func FuzzManifests(f *testing.F) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range archives {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range archive.Files {
			if !strings.HasSuffix(file.Name, "/want") {
				f.Add(file.Data, strings.Contains(file.Name, "/status/"))
			}
		}
	}
	f.Add([]byte("---\n--- a\n...\n---\t\n---x\n"), false)
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List}]"), false)
	f.Fuzz(func(t *testing.T, data []byte, status bool) {
		rel := "f.yaml"
		if status {
			rel = "status/f.yaml"
		}
		// A file that can't be parsed in time stops the source for good.
		watchdog := time.AfterFunc(10*time.Second, func() { panic("parse does not end") })
		defer watchdog.Stop()
		c, parts := read(data, rel, time.Time{}, nil)
		for _, p := range c.problems {
			if p.File != rel || p.Object == "" || p.Reason == "" {
				t.Errorf("a problem without file, object or reason: %+v", p)
			}
		}
		s := &Source{Params: Params{Now: time.Now}, files: map[string]*file{rel: {rel: rel}}}
		s.files[rel].replace(c)
		out, _ := s.merge()
		plausible(t, rel, out)
		// The same content again, broken at its end, takes nothing away.
		broken := append(slices.Clone(data), "\n---\n]"...)
		more, _ := read(broken, rel, time.Time{}, parts)
		if fresh, _ := read(broken, rel, time.Time{}, nil); !alike(more, fresh) {
			t.Errorf("what was read before differs from what is read anew: %+v, %+v", more, fresh)
		}
		s.files[rel].replace(more)
		again, _ := s.merge()
		if len(again.nodes) != len(out.nodes) || len(again.pods) != len(out.pods) ||
			len(again.namespaces) != len(out.namespaces) ||
			len(again.services) != len(out.services) || len(again.slices) != len(out.slices) ||
			len(again.policies) != len(out.policies) || len(again.groups) != len(out.groups) {
			t.Errorf("a broken document took objects away: %v, then %v", out, again)
		}
	})
}

// alike reports whether two readings of a file say the same.
func alike(a, b content) bool {
	return a.incomplete == b.incomplete && maps.Equal(a.suspects, b.suspects) && maps.Equal(a.unused, b.unused) &&
		slices.EqualFunc(a.docs, b.docs, func(a, b document) bool {
			return a.key == b.key && (a.row == b.row || equal(a.row, b.row))
		}) &&
		slices.EqualFunc(a.problems, b.problems, func(a, b *cluster.Problem) bool { return a.Error() == b.Error() })
}

// plausible checks what must hold of all rows, whatever the file says.
func plausible(t *testing.T, rel string, out rows) {
	t.Helper()
	for name, n := range out.nodes {
		if name == "" || n.Name != name || n.Source != "manifests:"+rel {
			t.Errorf("node %q: %+v", name, n)
		}
		for _, p := range n.PodCIDRs {
			if p != p.Masked() || p.Bits() == 0 {
				t.Errorf("node %q: podCIDR %s", name, p)
			}
		}
	}
	for k, p := range out.pods {
		if p.Key() != k || k.Name == "" || k.Namespace == "" || len(p.Addresses) > 2 {
			t.Errorf("pod %v: %+v", k, p)
		}
	}
	for k, v := range out.services {
		if v.Key() != k || k.Name == "" || k.Namespace == "" || len(v.ClusterIPs) > 2 || v.Type == "" {
			t.Errorf("service %v: %+v", k, v)
		}
	}
	for k, v := range out.slices {
		if v.Key() != k || k.Name == "" || k.Namespace == "" {
			t.Errorf("slice %v: %+v", k, v)
		}
	}
}
