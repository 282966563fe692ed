package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseObjects(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ yaml, want string }{
		{"", "[]"},
		{"# nothing\n---\n# here\n", "[]"},
		{"kind: Pod\napiVersion: v1\nmetadata: {name: p}\n", "[t: Pod default/p]"},
		{"kind: Pod\napiVersion: example.com/v1\nmetadata: {name: p}\n", "[t: Pod /p]"},
		{"{kind: Node, apiVersion: v1, metadata: {name: m}}\n---\nkind: X\nmetadata: {namespace: s, name: x}\n",
			"[t: Node /m t: X s/x]"},
		{"kind: List\nitems:\n- {kind: A, metadata: {name: a}}\n- {kind: BList, items: [{kind: B, metadata: {name: " +
			"b}}]}\n", "[t: A /a t: B /b]"},
		{"kind: A\n", "t: an object without kind or metadata.name"},
		{"kind: A\nmetadata: {name: ../a}\n", `t: kind, namespace or name can't be a file's: "A" "" "../a"`},
		{"a: [", "t: "},
		{"text", "t: "},
	} {
		objects, err := parseObjects("t", []byte(c.yaml))
		got := fmt.Sprint(objects)
		if err != nil {
			got = err.Error()
		}
		if got != c.want && (err == nil || !strings.HasPrefix(got, c.want)) {
			t.Errorf("%q: %s, want %s", c.yaml, got, c.want)
		}
	}
}

// FuzzParseObjects looks for input that is neither taken nor refused, and for names that leave the directory.
func FuzzParseObjects(f *testing.F) {
	f.Add([]byte(twoNodes))
	f.Add([]byte("kind: List\nitems: [{kind: A, metadata: {name: ../../b}}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, err := parseObjects("t", data)
		if err != nil {
			return
		}
		for _, o := range objects {
			if name := o.fileName(); filepath.Base(name) != name || len(name) > 255 {
				t.Errorf("file name %q", name)
			}
		}
		if _, err := planNodes(objects, UnderlayDual); err != nil {
			return
		}
		_, _ = pods(objects) // an error is an answer
	})
}

func TestPods(t *testing.T) {
	t.Parallel()
	pod := func(name, containers string) string {
		return fmt.Sprintf("kind: Pod\napiVersion: v1\nmetadata: {name: %s}\nspec: {containers: [%s]}\n", name,
			containers)
	}
	for _, c := range []struct{ yaml, want string }{
		{pod("p", "{name: a}, {name: b}"), ""},
		{pod("p", "{name: a}, {name: a}"), `container "a" is there twice`},
		{pod("p", "{name: ../a}"), `container "../a": `},
		{pod("p", ""), "no containers"},
		{pod("..", "{name: a}"), "t: Pod default/..: "},
		{pod("P", "{name: a}"), "t: Pod default/P: "},
		{pod("p", "{name: 1, command: x}"), "t: Pod default/p: "},
	} {
		objects, err := parseObjects("t", []byte(c.yaml))
		if err == nil {
			_, err = pods(objects)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.yaml, err, c.want)
		}
	}
}

func TestReadObjects(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"a.yaml":        "kind: A\nmetadata: {name: a}\n",
		"sub/b.json":    `{"kind": "B", "metadata": {"name": "b"}}`,
		"status/c.yaml": "kind: C\nmetadata: {name: c}\n",
		".hidden.yaml":  "kind: D\nmetadata: {name: d}\n",
		"notes.txt":     "not YAML: [",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	objects, err := readObjects(dir)
	if err != nil || len(objects) != 2 || objects[0].Name != "a" || objects[1].Name != "b" {
		t.Errorf("objects %v, %v", objects, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "again.yaml"), []byte("kind: A\nmetadata: {name: a}\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readObjects(dir); err == nil || !strings.Contains(err.Error(), "again.yaml: A /a: in ") {
		t.Errorf("the same object in two files: %v", err)
	}
}

func TestExpand(t *testing.T) {
	t.Parallel()
	vars := map[string]string{"A": "x", "B": "$(A)"}
	for in, want := range map[string]string{
		"": "", "$": "$", "$(A)": "x", "a$(A)b$(A)": "axbx", "$$(A)": "$(A)", "$(B)": "$(A)", "$(C)": "$(C)",
		"$(A": "$(A", "$A": "$A", "$$$$": "$$", "100$": "100$", "$()": "$()",
	} {
		if got := expand(in, vars); got != want {
			t.Errorf("expand %q: %q, want %q", in, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	l := &Lab{opts: Options{Name: "l"}}
	if a, b := l.podNetns("n", "x-y", "z"), l.podNetns("n", "x", "y-z"); a == b {
		t.Errorf("two pods are %s", a)
	}
	long := strings.Repeat("a", 253)
	a, b := l.podNetns(long, "ns", "pod"), l.podNetns(long, "ns", "pod2")
	if a == b || len(a) > 128 || !strings.HasPrefix(a, "l-aaa") {
		t.Errorf("long names %s, %s", a, b)
	}
	for _, bad := range []string{"", "A", "1a", "a-b", "a_b", "../a", "a/b", strings.Repeat("a", 21)} {
		if checkName(bad) == nil {
			t.Errorf("lab name %q is taken", bad)
		}
	}
}

func TestPlanNodes(t *testing.T) {
	t.Parallel()
	node := func(name, status string) string {
		return fmt.Sprintf("kind: Node\napiVersion: v1\nmetadata: {name: %s}\nstatus: {addresses: [%s]}\n---\n",
			name, status)
	}
	v4, v6 := "{type: InternalIP, address: 10.1.1.1}", "{type: InternalIP, address: 'fd00::1'}"
	for _, c := range []struct{ yaml, underlay, want string }{
		{node("b", v4) + node("a", v6), UnderlayDual, "a1[fd00::1] b2[10.1.1.1] "},
		{node("a", v4+","+v6), UnderlayIPv4, "a1[10.1.1.1] "},
		{node("a", v4), UnderlayIPv6, "t: Node /a: status.addresses: no InternalIP for an underlay of ipv6"},
		{node("a", "{type: InternalIP, address: x}"), UnderlayDual, "t: Node /a: status.addresses: "},
		{node("world", v4), UnderlayDual, "t: Node /world: the lab can't have a node of that name"},
	} {
		objects, err := parseObjects("t", []byte(c.yaml))
		if err != nil {
			t.Fatal(err)
		}
		nodes, err := planNodes(objects, c.underlay)
		got := ""
		for _, n := range nodes {
			got += fmt.Sprintf("%s%d%v ", n.Name, n.Index, n.Addresses)
		}
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s, want %s", c.underlay, got, c.want)
		}
	}
	if _, err := planWorld([]NodeState{{Name: "n", Addresses: addrs("10.0.0.254")}}, nil); err == nil {
		t.Error("a node has the world's address")
	}
}
