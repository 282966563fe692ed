package policy

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// SortNames sorts names and patterns, so that lists with the same items are equal.
func SortNames(names []NamePattern) {
	slices.SortFunc(names, func(a, b NamePattern) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Pattern, b.Pattern))
	})
}

// NeedsProxy reports whether the rule means nothing without the proxy.
func (r *Rule) NeedsProxy() bool {
	return r.L7 != nil || slices.ContainsFunc(r.Peers, func(p Peer) bool { return p.Names != nil })
}

// Matches reports whether a name matches, with or without the final dot and in any case: as Cilium's matchPattern has
// it, "*" alone is any name, "**." at the start one or more labels, and any other "*" any part of one label.
func (n NamePattern) Matches(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if n.Name != "" {
		return n.Name == name
	}
	if strings.Trim(n.Pattern, "*") == "" {
		return n.Pattern != "" && regexp.MustCompile(`^([-a-z0-9_]+(\.[-a-z0-9_]+)*)?$`).MatchString(name)
	}
	e := regexp.QuoteMeta(n.Pattern)
	e = regexp.MustCompile(`^(\\\*){2,}\\\.`).ReplaceAllLiteralString(e, `([-a-z0-9_]+\.)+`)
	e = regexp.MustCompile(`(\\\*)+`).ReplaceAllLiteralString(e, `[-a-z0-9_]*`)
	return regexp.MustCompile("^" + e + "$").MatchString(name)
}

// MatchesServerName reports whether one of ServerNames matches the SNI of a TLS connection.
func (l *L7) MatchesServerName(name string) bool {
	return slices.ContainsFunc(l.ServerNames, func(p string) bool { return NamePattern{Pattern: p}.Matches(name) })
}

// String names what the proxy enforces, as in "http GET /public", "dns *.example" or "server names a.example".
func (l *L7) String() string {
	var parts []string
	if len(l.HTTP) > 0 {
		parts = append(parts, "http "+list(l.HTTP, " or "))
	}
	if len(l.DNS) > 0 {
		parts = append(parts, "dns "+list(l.DNS, " or "))
	}
	if len(l.ServerNames) > 0 {
		parts = append(parts, "server names "+strings.Join(l.ServerNames, " or "))
	}
	if l.Terminating != nil {
		parts = append(parts, "terminated by "+l.Terminating.Secret.String())
	}
	if l.Originating != nil {
		parts = append(parts, "opened with "+l.Originating.Secret.String())
	}
	return strings.Join(parts, ", ")
}

// String is "namespace/name".
func (s SecretRef) String() string { return s.Namespace + "/" + s.Name }

// String is as in "GET /public host=a.example X-Token=secret shop/token"; "any" where it matches all requests.
func (h HTTPRule) String() string {
	var parts []string
	if h.Method != "" {
		parts = append(parts, h.Method)
	}
	if h.Path != "" {
		parts = append(parts, h.Path)
	}
	if h.Host != "" {
		parts = append(parts, "host="+h.Host)
	}
	for _, text := range h.Headers {
		parts = append(parts, "["+text+"]")
	}
	for _, m := range h.HeaderMatches {
		parts = append(parts, "["+m.String()+"]")
	}
	if len(parts) == 0 {
		return "any"
	}
	return strings.Join(parts, " ")
}

// String is as in "X-Token: abc" or "X-Token: secret shop/token else REPLACE".
func (m HeaderMatch) String() string {
	text := m.Name
	switch {
	case m.Secret != nil:
		text += ": secret " + m.Secret.String()
	case m.Value != "":
		text += ": " + m.Value
	}
	if m.Mismatch != MismatchDeny {
		text += " else " + string(m.Mismatch)
	}
	return text
}
