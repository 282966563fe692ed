package httpproxy_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/l7/config"
	"myelin/policy"
)

// reference evaluates rules as they are documented, on what net/http makes of the request. It returns the headers to
// add and whether the request is allowed.
func reference(rule config.Rule, r *http.Request, target string) (allowed bool, added http.Header) {
	added = http.Header{}
	for _, part := range rule.Parts {
		if len(part.L7.HTTP) == 0 {
			allowed = true
		}
		for _, h := range part.L7.HTTP {
			ok := whole(h.Method, r.Method) && whole(h.Path, target) && whole(h.Host, r.Host)
			for _, want := range h.Headers {
				name, value, _ := strings.Cut(want, ": ")
				ok = ok && hasHeader(r, name, value)
			}
			adds := http.Header{}
			for _, m := range h.HeaderMatches {
				if hasHeader(r, m.Name, m.Value) {
					continue
				}
				ok = ok && m.Mismatch != policy.MismatchDeny
				if m.Mismatch == policy.MismatchAdd {
					adds.Set(m.Name, m.Value)
				}
			}
			if !ok {
				continue
			}
			allowed = true
			for name := range adds {
				if !slices.Contains(added[name], adds.Get(name)) {
					added.Add(name, adds.Get(name))
				}
			}
		}
	}
	return allowed, added
}

func addAll(to, from http.Header) {
	for name, values := range from {
		to[name] = append(to[name], values...)
	}
}

func whole(expression, value string) bool {
	return expression == "" || regexp.MustCompile("^(?:"+expression+")$").MatchString(value)
}

func hasHeader(r *http.Request, name, value string) bool {
	values := r.Header.Values(name)
	return len(values) > 0 && (value == "" || strings.Join(values, ",") == value)
}

// referenceTarget is the path that rules see, made by the standard library, with the query.
func referenceTarget(u *url.URL) string {
	clean := path.Clean("/" + u.Path)
	last := u.Path[strings.LastIndexByte(u.Path, '/')+1:]
	if clean != "/" && (last == "" || last == "." || last == "..") {
		clean += "/"
	}
	if u.RawQuery == "" {
		return clean
	}
	return clean + "?" + u.RawQuery
}

func pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

func randomRule(random *rand.Rand) config.Rule {
	var rule config.Rule
	for range random.IntN(3) + 1 {
		var part config.Part
		for range random.IntN(4) {
			h := policy.HTTPRule{
				Method: pick(random, "", "GET", "GET|POST", "P.*", "(GET)", "GE", "^GET$", "[A-Z]+"),
				Path: pick(random, "", "/", "/a", "/a/.*", "/a.+", "/(a|b)", "/a|/b", "/.*b", "/a/b/?", ".*", "/A",
					"(?i)/A.*", "/a[.]b", "/b\\?x=1", "^/a"),
				Host: pick(random, "", "", "", "a.example", "a[.]example", ".*[.]example", "a.example:80"),
			}
			if random.IntN(3) == 0 {
				h.Headers = append(h.Headers, pick(random, "X-A", "X-A: 1", "x-b: 2", "X-A: 1,2"))
			}
			if random.IntN(3) == 0 {
				h.HeaderMatches = append(h.HeaderMatches, policy.HeaderMatch{Name: pick(random, "X-A", "X-B"),
					Value: pick(random, "1", "2"), Mismatch: pick(random, policy.MismatchDeny, policy.MismatchLog,
						policy.MismatchAdd)})
			}
			part.L7.HTTP = append(part.L7.HTTP, h)
		}
		// Few parts allow everything.
		if len(part.L7.HTTP) > 0 || random.IntN(4) == 0 {
			rule.Parts = append(rule.Parts, part)
		}
	}
	return rule
}

func randomRequest(random *rand.Rand) string {
	target := ""
	for range random.IntN(4) {
		target += pick(random, "/a", "/b", "/a.b", "/.", "/..", "/", "/%61", "/%2e%2E", "/ab", "/c")
	}
	if target == "" {
		target = "/"
	}
	target += pick(random, "", "", "", "?x=1", "?/../a")
	text := pick(random, "GET", "POST", "PUT", "GE", "get") + " " + target + " HTTP/1.1\r\nHost: " +
		pick(random, "a.example", "b.example", "a.example:80", "A.example", "axexample") + "\r\n"
	for range random.IntN(3) {
		text += pick(random, "X-A", "x-a", "X-B") + ": " + pick(random, "1", "2", " 1 ") + "\r\n"
	}
	return text + "\r\n"
}

// TestReference sends random requests through the proxy with random rule sets, and compares what comes back and what
// the server gets with the reference.
func TestReference(t *testing.T) {
	const sets, requests = 500, 100
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 1))
	seen := make(chan *http.Request, 1)
	server := rawServer(t, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		for {
			request, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			seen <- request
			io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
		}
	})
	for range sets {
		egress, ingress := randomRule(random), randomRule(random)
		// Without HTTP rules connections are passed as a whole.
		egress.Parts = append(egress.Parts, config.Part{L7: policy.L7{HTTP: []policy.HTTPRule{{Path: "/none"}}}})
		r := newRig(t, server, config.HTTP{}, compile(t, egress, nil), compile(t, ingress, nil))
		conn := r.connect()
		in := bufio.NewReader(conn)
		for range requests {
			text := randomRequest(random)
			if message := compareRequest(conn, in, text, egress, ingress, seen); message != "" {
				t.Fatalf("seed %d: %s\nrequest %q\negress %+v\ningress %+v", seed, message, text, egress, ingress)
			}
		}
		conn.Close()
	}
}

func compareRequest(conn net.Conn, in *bufio.Reader, text string, egress, ingress config.Rule,
	seen chan *http.Request) string {
	parsed, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
	if err != nil {
		return err.Error()
	}
	target := referenceTarget(parsed.URL)
	allowed, added := reference(egress, parsed, target)
	addAll(parsed.Header, added)
	if allowed {
		var more http.Header
		allowed, more = reference(ingress, parsed, target)
		addAll(parsed.Header, more)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		return err.Error()
	}
	response, err := http.ReadResponse(in, parsed)
	if err != nil {
		return err.Error()
	}
	io.Copy(io.Discard, response.Body)
	if want := map[bool]int{true: 204, false: 403}[allowed]; response.StatusCode != want {
		return fmt.Sprintf("status %d instead of %d", response.StatusCode, want)
	}
	if !allowed {
		return ""
	}
	got := <-seen
	var gotHeader, wantHeader bytes.Buffer
	got.Header.Write(&gotHeader)
	parsed.Header.Write(&wantHeader)
	if got.RequestURI != target || got.Method != parsed.Method || got.Host != parsed.Host ||
		gotHeader.String() != wantHeader.String() {
		return fmt.Sprintf("the server got %s %s %s %q, want %s %q", got.Method, got.Host, got.RequestURI,
			gotHeader.String(), target, wantHeader.String())
	}
	return ""
}
