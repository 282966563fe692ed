package lab

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ApplyAll takes several files and standard input, and says what became of each object.
func TestApplyAll(t *testing.T) {
	t.Parallel()
	opts := testOptions(t, oneNode+podYAML("stays", "Always", "sleep 1000"))
	l := up(t, opts)
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	space := func(name, label string) string {
		return "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + ", labels: {x: " + label + "}}\n"
	}
	both := []string{file("a.yaml", space("a", "v1")), file("b.yaml", "# b\n"+space("b", "v1"))}
	for _, step := range []struct {
		name, stdin string
		paths       []string
		prune       bool
		want        string
	}{
		{"new", "", both, false, "namespace/a created; namespace/b created"},
		{"again", "", both, false, "namespace/a unchanged; namespace/b unchanged"},
		{"another text", "", []string{file("b.yaml", space("b", `"v1"`))}, false, "namespace/b unchanged"},
		{"from stdin", space("a", "v2"), []string{"-", both[1]}, false,
			"namespace/a configured; namespace/b unchanged"},
		{"a directory", "", []string{filepath.Dir(both[0])}, false, "namespace/a configured"},
		{"prune", "", []string{both[1]}, true, "namespace/b unchanged; namespace/a pruned; pod/default/stays pruned"},
	} {
		var got []string
		err := l.ApplyAll(t.Context(), ApplyOptions{
			Paths: step.paths, Stdin: strings.NewReader(step.stdin), Prune: step.prune,
			Each: func(c Change) { got = append(got, c.String()) },
		})
		if err != nil || strings.Join(got, "; ") != step.want {
			t.Errorf("%s: %v, %v; want %s", step.name, got, err, step.want)
		}
	}
	err := l.ApplyAll(t.Context(), ApplyOptions{Paths: []string{both[0], both[0]}})
	if err == nil || !strings.Contains(err.Error(), "a.yaml too") {
		t.Errorf("an object in two places: %v", err)
	}
}

// The reasons of all agents are told, and which agents where they differ.
func TestVerdict(t *testing.T) {
	v := verdict{}
	for _, n := range []string{"a", "b"} {
		v.add("spec.x: bad", n)
	}
	v.add("only one", "b")
	c := Change{Kind: "NetworkPolicy", Namespace: "demo", Name: "x", Action: resultCreated, Rejected: v.text(2)}
	if want := "networkpolicy/demo/x rejected: spec.x: bad; only one (on b)"; c.String() != want {
		t.Errorf("%s, want %s", c, want)
	}
}

// Troubles names containers that are started again and again, and no others.
func TestCrashLoops(t *testing.T) {
	t.Parallel()
	opts := testOptions(t, oneNode+podYAML("good", "Always", "sleep 1000")+podYAML("once", "Never", "exit 3")+
		podYAML("loops", "Always", "echo no config; exit 7")+podYAML("fails", "OnFailure", "sleep 0.2; exit 1"))
	l := up(t, opts)
	troubles, err := l.Troubles(t.Context())
	if err != nil || len(troubles) != 2 {
		t.Fatalf("%q, %v; want those of two pods", troubles, err)
	}
	slices.Sort(troubles)
	for i, pod := range []string{"default/fails", "default/loops"} {
		if want := "pod " + pod + " crash-loops: container "; !strings.HasPrefix(troubles[i], want) {
			t.Errorf("%s; want %s", troubles[i], want)
		}
	}
	if !strings.Contains(troubles[1], "last status 7") || !strings.Contains(troubles[1], "no config") {
		t.Errorf("%s; want the status and the log", troubles[1])
	}
}
