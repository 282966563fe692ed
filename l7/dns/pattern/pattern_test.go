package pattern

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"myelin/policy"
)

// TestMatch has the examples of Cilium's documentation and tests.
func TestMatch(t *testing.T) {
	for _, test := range []struct {
		pattern        string
		accept, reject []string
	}{
		{"cilium.io", []string{"cilium.io"},
			[]string{"", "io", "a.cilium.io", "ciliumXio", "cilium.io.io", "cilium_io"}},
		{"cilium.io.", []string{"cilium.io"}, []string{"a.cilium.io"}},
		{" Cilium.IO ", []string{"cilium.io"}, []string{"cilium.com"}},
		{"*.cilium.io", []string{"anysub.cilium.io", "_http.cilium.io", "a-b.cilium.io"},
			[]string{"", "cilium.io", "a.b.cilium.io", "anysub.ci.io", "anysub.ciliumandmore.io"}},
		{"*cilium.io", []string{"cilium.io", "sub-cilium.io", "subcilium.io"}, []string{"sub.cilium.io", "cilium.iox"}},
		{"*.ci*.io", []string{"anysub.cilium.io", "anysub.ci.io", "anysub.ciliumandmore.io"},
			[]string{"", "cilium.io", "anysub.ci.um.io", "anysub.xci.io"}},
		{"sub*.cilium.io", []string{"sub.cilium.io", "subdomain.cilium.io"},
			[]string{"xsub.cilium.io", "sub.x.cilium.io"}},
		{"a*b*c.io", []string{"abc.io", "axbxc.io", "abbbc.io", "abcbc.io"}, []string{"ab.io", "abcx.io", "a.b.c.io"}},
		{"*", []string{"", "io", "cilium.io", "a.b.svc.cluster.local", "_foobar._tcp.cilium.io"},
			[]string{"a b.io", `a\.b.io`, "ä.io", ".io", "a..io", "io."}},
		{"**", []string{"", "a.b.c"}, []string{"a b"}},
		{"***.", []string{"", "a.b.c"}, []string{"a b"}},
		{"**.cilium.io", []string{"a.cilium.io", "a.b.cilium.io", "a.b.c.d.cilium.io"},
			[]string{"cilium.io", "acilium.io", "cilium.io.x", "io"}},
		{"****.cilium.io", []string{"a.b.cilium.io"}, []string{"cilium.io"}},
		{"**cilium.io", []string{"cilium.io", "xcilium.io"}, []string{"x.cilium.io"}},
		{"**.*.io", []string{"a.b.io", "a.b.c.io"}, []string{"b.io", "io"}},
		{"x.**.io", []string{"x.y.io"}, []string{"x.y.z.io", "x.io"}},
		{"cilium.*", []string{"cilium.io", "cilium.com"}, []string{"cilium", "cilium.co.uk", "x.cilium.io"}},
		{".", []string{""}, []string{"io", "a.io"}},
		{"**..", nil, []string{"", "io", "a.io"}},
	} {
		p, err := Compile(policy.NamePattern{Pattern: test.pattern})
		if err != nil {
			t.Errorf("%q: %v", test.pattern, err)
			continue
		}
		var index Index
		index.Add(p, 7)
		for i, names := range [][]string{test.reject, test.accept} {
			for _, name := range names {
				if got := p.Match(name); got != (i == 1) {
					t.Errorf("%q matches %q: %v", test.pattern, name, got)
				}
				if got := index.Append(nil, []byte(name)); (len(got) == 1) != (i == 1) {
					t.Errorf("the index of %q has %v for %q", test.pattern, got, name)
				}
			}
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	for _, n := range []policy.NamePattern{
		{}, {Name: "*.cilium.io"}, {Pattern: "a b"}, {Pattern: "[a].io"}, {Pattern: "a+.io"}, {Name: "ä.io"},
		{Pattern: strings.Repeat("a", maxLength+1)}, {Pattern: `a\.io`},
	} {
		if p, err := Compile(n); err == nil {
			t.Errorf("Compile(%q) = %+v, want an error", n, p)
		}
	}
}

// TestSetStar compares rules.dns with toFQDNs: there, "*" is for all names.
func TestSetStar(t *testing.T) {
	var set, empty Set
	star, _ := Compile(policy.NamePattern{Pattern: "*"})
	set.Add(star)
	for _, name := range []string{"", "a.io", "a b.io"} {
		if got, none := set.Match([]byte(name)), empty.Match([]byte(name)); !got || none {
			t.Errorf("%q: set %v, empty set %v, want true, false", name, got, none)
		}
	}
	if star.Match("a b.io") {
		t.Error(`a selector "*" matches "a b.io"`)
	}
}

// definition is how Cilium defines its patterns: as regular expressions of names with a final dot.
func definition(pattern string) *regexp.Regexp {
	const char = "[-a-zA-Z0-9_]"
	pattern = strings.ToLower(pattern)
	if regexp.MustCompile(`^\*+\.?$`).MatchString(pattern) {
		return regexp.MustCompile(`^((` + char + `+[.])+|[.])$`)
	}
	if !strings.HasSuffix(pattern, ".") {
		pattern += "."
	}
	text := regexp.MustCompile(`^\*{2,}\.`).ReplaceAllString(pattern, "<many>")
	text = strings.ReplaceAll(text, ".", "[.]")
	text = regexp.MustCompile(`\*+`).ReplaceAllString(text, char+"*")
	text = strings.ReplaceAll(text, "<many>", "("+char+"+[.])+")
	return regexp.MustCompile("^" + text + "$")
}

func randomText(r *rand.Rand, chars string) string {
	labels := make([]string, 1+r.IntN(4))
	for i := range labels {
		for range 1 + r.IntN(4) {
			labels[i] += string(chars[r.IntN(len(chars))])
		}
	}
	return strings.Join(labels, ".")
}

// TestDefinition compares the matcher and the index with the definition.
func TestDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	matched := 0
	for range 300 {
		var index Index
		var patterns []Pattern
		var definitions []*regexp.Regexp
		var texts []string
		for len(patterns) < 20 {
			text := randomText(r, "ab*")
			if r.IntN(4) == 0 {
				text = "**." + text
			}
			p, err := Compile(policy.NamePattern{Pattern: text})
			if err != nil {
				t.Fatal(err)
			}
			index.Add(p, uint32(len(patterns)))
			patterns, texts = append(patterns, p), append(texts, text)
			definitions = append(definitions, definition(text))
		}
		for range 40 {
			name := randomText(r, "aaabbb-")
			if r.IntN(20) == 0 {
				name += " x"
			}
			var want []uint32
			for i, d := range definitions {
				if d.MatchString(name + ".") {
					want = append(want, uint32(i))
				}
				if got := patterns[i].Match(name); got != d.MatchString(name+".") {
					t.Fatalf("%q matches %q: %v", texts[i], name, got)
				}
			}
			got := index.Append(nil, []byte(name))
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("%q: got %v, want %v of %q", name, got, want, texts)
			}
			matched += len(want)
		}
	}
	if matched < 1000 {
		t.Fatalf("only %d matches: the test compares nothing", matched)
	}
}

func FuzzPattern(f *testing.F) {
	for _, seed := range [][2]string{
		{"*.cilium.io", "a.cilium.io"}, {"**.io", "a.b.io"}, {"*", ""}, {"a**b.*", "ab.c"}, {"**..", "a"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, name string) {
		name = strings.ToLower(name)
		p, err := Compile(policy.NamePattern{Pattern: text})
		if err != nil || strings.Contains(name, "..") || strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") {
			return // no DNS message has such a name
		}
		if want := definition(strings.TrimSpace(text)).MatchString(name + "."); p.Match(name) != want {
			t.Errorf("%q matches %q: %v, want %v", text, name, !want, want)
		}
	})
}

func BenchmarkIndex(b *testing.B) {
	var index Index
	for i := range 10_000 {
		text := fmt.Sprintf("host%d.example.com", i)
		if i%2 == 1 {
			text = fmt.Sprintf("*.zone%d.example.com", i)
		}
		p, _ := Compile(policy.NamePattern{Pattern: text})
		index.Add(p, uint32(i))
	}
	values, name := make([]uint32, 0, 8), []byte("www.zone77.example.com")
	b.ReportAllocs()
	for b.Loop() {
		values = index.Append(values[:0], name)
	}
	if len(values) != 1 || values[0] != 77 {
		b.Fatal(values)
	}
}
