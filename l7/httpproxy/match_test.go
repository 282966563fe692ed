package httpproxy

import (
	"testing"

	"myelin/l7/config"
	"myelin/policy"
)

func TestPattern(t *testing.T) {
	for _, test := range []struct {
		expression string
		kind       patternKind
		yes, no    []string
	}{
		{"", matchAll, []string{"", "a"}, nil},
		{".*", matchAll, []string{"", "a"}, nil},
		{"GET", matchLiteral, []string{"GET"}, []string{"", "GE", "GETS", "get", "AGET"}},
		{"^GET$", matchLiteral, []string{"GET"}, []string{"GETS"}},
		{"(GET)", matchLiteral, []string{"GET"}, []string{"GETS"}},
		{"/api/public.*", matchPrefix, []string{"/api/public", "/api/public/a"},
			[]string{"/api/publi", "/a/api/public"}},
		{"/a/.+", matchLongerPrefix, []string{"/a/b"}, []string{"/a/", "/a"}},
		{".+", matchLongerPrefix, []string{"a"}, []string{""}},
		{"/a|b", matchOneOf, []string{"/a", "b"}, []string{"/b", "/ab"}},
		{"/a.*|/b/.+", matchOneOf, []string{"/ab", "/b/c"}, []string{"/b/", "c"}},
		{"GET|POST|PUT", matchOneOf, []string{"GET", "POST", "PUT"}, []string{"P", "UT", "GETT"}},
		{"GE|GET", matchOneOf, []string{"GE", "GET"}, []string{"G", "GETT"}},
		{"/a(|/.*)", matchRegexp, []string{"/a", "/a/b"}, []string{"/ab"}},
		{"/a[.]b", matchLiteral, []string{"/a.b"}, []string{"/axb"}},
		{"/a.b", matchRegexp, []string{"/a.b", "/axb"}, []string{"/ab", "/a.bc"}},
		{"(?i)get", matchRegexp, []string{"GET", "get"}, []string{"GETS"}},
		{"a|ab", matchOneOf, []string{"a", "ab"}, []string{"abc", "b"}},
		{"/v[0-9]+/.*", matchRegexp, []string{"/v1/", "/v12/a"}, []string{"/v/", "/v1"}},
	} {
		p, err := compilePattern(test.expression)
		if err != nil || p.kind != test.kind {
			t.Errorf("%q: kind %d, want %d: %v", test.expression, p.kind, test.kind, err)
			continue
		}
		for _, value := range test.yes {
			if !p.match(value) {
				t.Errorf("%q does not match %q", test.expression, value)
			}
		}
		for _, value := range test.no {
			if p.match(value) {
				t.Errorf("%q matches %q", test.expression, value)
			}
		}
	}
}

func TestServerNamePattern(t *testing.T) {
	for _, test := range []struct {
		pattern string
		yes, no []string
	}{
		{"a.org", []string{"a.org"}, []string{"b.a.org", "axorg", "a.org.b", ""}},
		{"A.org.", []string{"a.org"}, nil},
		{"*.a.org", []string{"b.a.org"}, []string{"a.org", "c.b.a.org"}},
		{"**.a.org", []string{"b.a.org", "c.b.a.org"}, []string{"a.org", "ba.org"}},
		{"b*.a.org", []string{"b.a.org", "bc.a.org"}, []string{"c.a.org"}},
		{"*", []string{"a", "a.org", "b.a.org"}, []string{"a.", "."}},
	} {
		re, err := serverName(test.pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range test.yes {
			if !re.MatchString(name) {
				t.Errorf("%q does not match %q", test.pattern, name)
			}
		}
		for _, name := range test.no {
			if re.MatchString(name) {
				t.Errorf("%q matches %q", test.pattern, name)
			}
		}
	}
}

// TestHeaderMatches shows what each action does to a request with the header, without it, and with another value.
func TestHeaderMatches(t *testing.T) {
	ref := policy.SecretRef{Namespace: "n", Name: "s"}
	secrets := Secrets{ref: {"key": []byte("v\n")}}
	const first = "GET / HTTP/1.1\r\nHost: a\r\n"
	for _, test := range []struct {
		mismatch policy.Mismatch
		sent     string
		allowed  bool
		want     string
	}{
		{policy.MismatchDeny, "A: v\r\n", true, "A: v\r\n"},
		{policy.MismatchDeny, "A: w\r\n", false, ""},
		{policy.MismatchDeny, "", false, ""},
		{policy.MismatchLog, "A: w\r\n", true, "A: w\r\n"},
		{policy.MismatchLog, "", true, ""},
		{policy.MismatchAdd, "a: v\r\n", true, "a: v\r\n"},
		{policy.MismatchAdd, "A: w\r\n", true, "A: w\r\nA: v\r\n"},
		{policy.MismatchAdd, "B: b\r\n", true, "B: b\r\nA: v\r\n"},
		{policy.MismatchDelete, "A: w\r\na: x\r\nB: b\r\n", true, "B: b\r\n"},
		{policy.MismatchDelete, "A: v\r\n", true, "A: v\r\n"},
		{policy.MismatchReplace, "A: w\r\nB: b\r\n", true, "B: b\r\nA: v\r\n"},
		{policy.MismatchReplace, "", true, "A: v\r\n"},
	} {
		match := policy.HeaderMatch{Mismatch: test.mismatch, Name: "A", Secret: &ref}
		rules := []policy.HTTPRule{{HeaderMatches: []policy.HeaderMatch{match}}}
		set, err := Compile(config.Rule{Parts: []config.Part{{L7: policy.L7{HTTP: rules}}}}, secrets)
		if err != nil {
			t.Fatal(err)
		}
		s := &session{flow: &Flow{Sets: func() []*RuleSet { return []*RuleSet{set} }}}
		var r relay
		if p := r.head.parseRequest([]byte(first + test.sent + "\r\n")); p != 0 {
			t.Fatal(p)
		}
		r.head.request(&r.req, "")
		d := s.decide(&r.req, &r.head, r.fields)
		got := string(r.head.append(nil))
		if d.allowed != test.allowed || test.allowed && got != first+test.want+"\r\n" {
			t.Errorf("%q with %q: allowed %v, forwarded %q", test.mismatch, test.sent, d.allowed, got)
		}
	}
}
