package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReport reads two runs of node and two of a scenario, of which the first had something else in its way.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"kallsyms": "ffffffff81000000 T _text\nffffffff81000100 t htab_map_hash\n" +
			"ffffffffc0000000 t bpf_prog_0123456789abcdef_from_pod\t[bpf]\n" +
			"ffffffffc0001000 t bpf_prog_fedcba9876543210\n",
		"0": "ffffffff81000000 10 5\n",
		"1": "ffffffff81000000 10 25\n",
		"2": "ffffffff81000000 10 25\n",
		"3": "ffffffff81000000 10 65\n",
		"4": "ffffffff81000000 10 65\n",
		"5": "ffffffff81000000 10 265\n",
		"6": "ffffffff81000000 10 265\n",
		"7": "ffffffff81000000 10 285\nffffffff81000104 3 20\nffffffffc0000010 7 10\nffffffffc0001000 2 10\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	show := func(profiles ...profile) string {
		t.Helper()
		var text strings.Builder
		if err := write(&text, profiles, 10); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	node, err := load(dir, "node", 10)
	if err != nil {
		t.Fatal(err)
	}
	pods, err := load(dir, "pods", 10)
	if err != nil {
		t.Fatal(err)
	}
	const want = `  MORE  NODE  PODS  FUNCTION
    15    20    35  all
     7     0     7  bpf:from_pod
     6     0     6  htab_map_hash
     2     0     2  bpf:
     0    20    20  _text
`
	if got := show(node, pods); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if got := show(pods); !strings.Contains(got, "35        0    35  all") {
		t.Errorf("one profile: %s", got)
	}
}

// TestBroken has files that are not what the plugin writes.
func TestBroken(t *testing.T) {
	dir := t.TempDir()
	if _, err := load(dir, "pods", 10); err == nil {
		t.Error("no symbols, no error")
	}
	for _, name := range []string{"kallsyms", "0"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("ffffffff81000000 x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := load(dir, "pods", 10); err == nil || !strings.Contains(err.Error(), name+": line 1: ") {
			t.Errorf("%v, want the place in %s", err, name)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestParse refuses what can't be measured.
func TestParse(t *testing.T) {
	for _, args := range []string{"", "a b c", "-test walk redirect"} {
		if _, _, err := parse(strings.Fields(args)); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
	s, scenarios, err := parse([]string{"-test", "rr", "-top", "5", "redirect", "veth"})
	if err != nil || len(scenarios) != 2 || s.test.Count() != 2000 || s.top != 5 {
		t.Errorf("%+v, %q, %v", s, scenarios, err)
	}
}
