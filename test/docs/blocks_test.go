package docstest

import (
	"fmt"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
	"testing"
)

func TestBlocksOfAText(t *testing.T) {
	text := "# top\n\n    indented one\n    two\n\n    three\n\n## SYNOPSIS\n- item\n\n    belongs to the " +
		"item\n\nprose\n\n```yaml\na: 1\n    b\n```\n`span a` and `b\\|c`\n"
	var got []string
	for _, b := range Blocks("x.md", text) {
		got = append(got, b.Heading+"|"+b.Info+"|"+strings.Join(b.Lines, ";"))
	}
	want := []string{"top||indented one;two", "top||three", "SYNOPSIS|yaml|a: 1;    b"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := codeSpans(text), []string{"span a", "b|c"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestContinuedLines(t *testing.T) {
	blocks := Blocks("x.md", "text\n\n    bin/myelin lab up \\\n      -f a \\\n      -f b\n    bin/myelin lab down\n")
	want := []string{"bin/myelin lab up -f a -f b", "bin/myelin lab down"}
	if len(blocks) != 1 || !reflect.DeepEqual(blocks[0].Lines, want) || !blocks[0].IsTour() {
		t.Errorf("got %q, want one tour of %q", blocks, want)
	}
}

func TestCommandsOfLines(t *testing.T) {
	got := Commands([]string{"$ make x      # why", "myelin lab up -f M [-n N]", "              [--mtu BYTES]",
		"myelin lab exec P…          P is a pod", ""})
	want := []string{"make x", "myelin lab up -f M [-n N] [--mtu BYTES]", "myelin lab exec P…"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestExpand(t *testing.T) {
	for synopsis, want := range map[string][]string{
		"a b":                    {"a b"},
		"a [-o json] …":          {"a", "a -o json"},
		"a|b c":                  {"a c", "b c"},
		"a [-m x|y [-t]] [P]...": {"a", "a -m x", "a -m y", "a -m x -t", "a P"},
		"a [--s PATH | --d DIR]": {"a", "a --s PATH", "a --d DIR"},
	} {
		lines, err := expand(synopsis)
		if err != nil {
			t.Errorf("%s: %v", synopsis, err)
		}
		var got []string
		for _, line := range lines {
			got = append(got, strings.Join(line, " "))
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %q, want %q", synopsis, got, want)
		}
	}
	for _, bad := range []string{"a [b", "a ] b"} {
		if lines, err := expand(bad); err == nil {
			t.Errorf("%s is taken: %q", bad, lines)
		}
	}
}

func TestSnippet(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "", `package web
type Params struct { Dir string }
type Source struct{}
func New(p Params) (*Source, error) { return nil, nil }
func (s *Source) Run(ctx, why any) {}`, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := &goModule{packages: map[string]*names{}, methods: map[string][]call{}}
	m.add(file)
	for snippet, want := range map[string]string{
		`s, err := web.New(web.Params{Dir: dir, ...})`: "",
		`go s.Run(ctx, why)   // till it ends`:         "",
		`s := web.Old()`:                               "there is no web.Old",
		`s := web.New(web.Params{Path: "x"})`:          "web.Params has no field Path",
		`s := web.New()`:                               "web.New does not take 0 arguments",
		`s.Run(ctx)`:                                   "no method Run takes 1 arguments",
		`s.Walk()`:                                     "no type of the tree has a method Walk",
		`for p := range s.All(txn) { ... }`:            "",
	} {
		wrong, ok := m.Snippet([]string{snippet})
		if got := strings.Join(wrong, "; "); !ok || got != want {
			t.Errorf("%s: got %q, %t, want %q", snippet, got, ok, want)
		}
	}
	if _, ok := m.Snippet([]string{"no Go: at all"}); ok {
		t.Error("prose is taken for Go")
	}
}

// TestWrongLinesAreFound: each kind of line is found when it is wrong.
func TestWrongLinesAreFound(t *testing.T) {
	tr := newTree(t)
	tr.programs = newPrograms(t, tr.root)
	tr.programs.reads = func(variable string) bool { return tr.has(variable, ".go", ".sh") }
	for i, b := range []Block{
		{Lines: []string{"myelin statsu"}}, {Lines: []string{"myelin status --no-such-flag"}},
		{Lines: []string{"myelin lab agent restart"}},
		{Lines: []string{"bin/myelin lab exec node1 -- myelin node lsit"}},
		{Lines: []string{"myelin lab status [-o json] | lost"}},
		{Lines: []string{"myelin lab up"}}, {Lines: []string{"myelin monitor [-n WORD]"}},
		{Lines: []string{"myelin-bench -mood vm"}},
		{Lines: []string{"make no-such-target"}}, {Lines: []string{"make bench NO_SUCH=1"}},
		{Lines: []string{"scripts/no-such.sh"}},
		{Lines: []string{"scripts/deps.sh nothing"}}, {Lines: []string{"vm.sh boot"}},
		{Lines: []string{"go test ./no-such"}},
		{Lines: []string{"go test ./bpf -run TestNoSuch"}}, {Lines: []string{"MYELIN_NO_SUCH=1 go test ./bpf"}},
		{Lines: []string{"helm instal myelin chart/myelin"}},
		{Lines: []string{"helm install myelin chart/myelin --set ipv6.enabeld=true"}},
		{Lines: []string{"helm install myelin chart/myelin --set egressGateway.enabled=true"}},
		{Info: "yaml", Lines: []string{
			"apiVersion: networking.k8s.io/v1", "kind: NetworkPolicy", "metadata: {name: x}", "specs: {}",
		}},
		{Info: "yaml", Lines: []string{"routingMood: native"}}, {Info: "yaml", Lines: []string{"routingMode: [nativ]"}},
		{Lines: []string{"return drop(skb, c);"}}, {Lines: []string{"return drop(skb, c, DROP_NO_SUCH);"}},
		{Lines: []string{"no_such(skb);"}},
		{Lines: []string{"1. A step that the demo does not have."}},
		{Lines: []string{
			"1. Start two nodes with an agent each, and four pods, from the YAML in examples/two-nodes.",
			"   $ myelin lab statsu",
		}},
		{Lines: []string{"eth a > b | ip a > unknown"}}, {Lines: []string{"x := bpf.NoSuch()"}},
		{Lines: []string{"a ─► no_such_function"}},
		{File: "bpf/README.md", Heading: "FILES", Lines: []string{"nosuch.go  what"}},
		{File: "lab/README.md", Lines: []string{"func NoSuch(ctx) error"}},
		{File: "agent/README.md", Lines: []string{"GET http://localhost:9879/nosuch   why"}},
		{Lines: []string{"just prose"}},
		{File: "status/README.md", Heading: "DESCRIPTION", Lines: []string{"nosuchword   explained"}},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			if len(tr.check(b)) == 0 {
				t.Errorf("nothing is wrong with %q", b.Lines)
			}
		})
	}
}
