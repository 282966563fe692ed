package explain

import (
	"cmp"
	"fmt"
	"net/textproto"
	"regexp"
	"slices"
	"strings"

	"myelin/policy"
)

// Content is what a flow carries that the proxy decides on. Empty fields are not known.
type Content struct {
	// HTTP is a request as in "GET /path", Host its host, and Headers are its others, each as in "Name: value". Host is
	// also the server's name of a TLS connection.
	HTTP, Host string
	Headers    []string
	// DNS is a name that a query asks for.
	DNS string
	// Partial: there may be more headers, and secrets of TLS.
	Partial bool
}

// ParseContent checks a content that a user wrote.
func ParseContent(c Content) (*Content, error) {
	method, path, ok := strings.Cut(c.HTTP, " ")
	if c.HTTP != "" && (!ok || method == "" || !strings.HasPrefix(path, "/")) {
		return nil, fmt.Errorf(`--http %s: want a method and a path, as in "GET /path"`, c.HTTP)
	}
	for _, h := range c.Headers {
		if name, _, ok := strings.Cut(h, ":"); !ok || name == "" {
			return nil, fmt.Errorf(`--header %s: want a name and a value, as in "Name: value"`, h)
		}
	}
	if c.HTTP == "" && len(c.Headers) > 0 {
		return nil, fmt.Errorf("--header stands beside --http")
	}
	if c.HTTP == "" && c.Host == "" && c.DNS == "" {
		return nil, nil
	}
	return &c, nil
}

// answer is whether the proxy lets something pass: it may depend on what is not known of it.
type answer uint8

const (
	no answer = iota
	depends
	yes
)

// decide says whether the proxy lets a content pass that no rule, one or several of a finding allow.
func (f *Finding) decide(c *Content, fqdn string) answer {
	best := no
	for _, r := range f.Proxied {
		l7 := r.L7
		best = max(best, c.matches(l7, fqdn))
		if f.Open && len(l7.HTTP)+len(l7.DNS) > 0 {
			best = max(best, c.serverName(l7, fqdn))
		}
	}
	return best
}

// matches reports whether what the proxy enforces allows a content.
func (c *Content) matches(l7 *policy.L7, fqdn string) answer {
	name := c.serverName(l7, fqdn)
	if name == no || len(l7.HTTP)+len(l7.DNS) == 0 {
		return name
	}
	if c == nil || c.HTTP == "" && c.DNS == "" {
		return depends
	}
	found := no
	if c.HTTP != "" {
		for i := range l7.HTTP {
			found = max(found, c.request(&l7.HTTP[i]))
		}
	}
	matches := func(n policy.NamePattern) bool { return n.Matches(c.DNS) }
	if c.DNS != "" && slices.ContainsFunc(l7.DNS, matches) {
		found = yes
	}
	return min(name, found)
}

// serverName reports whether the server's name is one that is asked for.
func (c *Content) serverName(l7 *policy.L7, fqdn string) answer {
	if len(l7.ServerNames) == 0 {
		return yes
	}
	name := fqdn
	if c != nil {
		name = cmp.Or(c.Host, fqdn)
	}
	switch {
	case name == "":
		return depends
	case l7.MatchesServerName(name):
		return yes
	}
	return no
}

// request reports whether a rule matches the request.
func (c *Content) request(h *policy.HTTPRule) answer {
	method, path, _ := strings.Cut(c.HTTP, " ")
	for _, of := range [][2]string{{h.Method, method}, {h.Path, path}} {
		if of[0] != "" && !wholeMatch(of[0], of[1]) {
			return no
		}
	}
	found := yes
	if h.Host != "" {
		switch {
		case c.Host == "":
			found = depends
		case !wholeMatch(h.Host, c.Host):
			return no
		}
	}
	for _, text := range h.Headers {
		name, value, exact := strings.Cut(text, ": ")
		have, ok := c.header(name)
		switch {
		case !ok && c.Partial:
			found = depends
		case !ok || exact && have != value:
			return no
		}
	}
	for _, m := range h.HeaderMatches {
		have, ok := c.header(m.Name)
		switch {
		case m.Mismatch != policy.MismatchDeny:
		case !ok && c.Partial:
			found = depends
		case !ok:
			return no
		case m.Secret != nil: // whose value is not read here
			found = min(found, depends)
		case m.Value != "" && have != m.Value:
			return no
		}
	}
	return found
}

func (c *Content) header(name string) (value string, ok bool) {
	for _, h := range c.Headers {
		n, v, _ := strings.Cut(h, ":")
		if textproto.CanonicalMIMEHeaderKey(n) == textproto.CanonicalMIMEHeaderKey(name) {
			return strings.TrimSpace(v), true
		}
	}
	return "", false
}

// wholeMatch reports whether an expression matches all of a text. Parsing has refused those that do not compile.
func wholeMatch(expression, text string) bool {
	e, err := regexp.Compile("^(?:" + expression + ")$")
	return err == nil && e.MatchString(text)
}

// proxyWhy is what the proxy makes of a flow, in words.
func (f *Finding) proxyWhy(decision answer) string {
	by := f.Rule.Name()
	switch decision {
	case yes:
		return "allowed by the proxy, which enforces " + by
	case no:
		return "denied by the proxy, which enforces " + by
	}
	return "redirected to the proxy, which enforces " + by
}

// refuse notes whether the proxy denies what the flow carries, and what would have it allowed.
func (s *Side) refuse(denied bool) {
	if s.Refused = denied; !denied {
		return
	}
	s.Change = nil
	for _, r := range s.Proxied {
		s.Change = append(s.Change, fmt.Sprintf("add to %s a rule that matches", r.Origin))
	}
}
