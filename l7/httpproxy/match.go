package httpproxy

import (
	"strings"

	"myelin/l7/config"
	"myelin/policy"
)

// Request is what rules are evaluated on. Its strings are valid during the call only.
type Request struct {
	Method string
	// Path is in origin form, with the query: what ":path" is in HTTP/2. It is empty for CONNECT.
	Path string
	// Host has the port if the request has it.
	Host   string
	Header []Header
	// ServerName is the SNI of the connection whose TLS the proxy terminates, in lower case.
	ServerName string
}

// Header is one header line.
type Header struct {
	Name, Value string
}

// Verdict is that of a RuleSet on a request.
type Verdict struct {
	Allowed bool
	// Part is the first rule that allows the request; nil: none does.
	Part *config.Part
	// Mismatches are headers that rules that match want otherwise.
	Mismatches []HeaderMismatch

	part *part
}

// HeaderMismatch is a header that a request does not have as a rule wants it.
type HeaderMismatch struct {
	// Action is MismatchLog, MismatchAdd, MismatchDelete or MismatchReplace.
	Action policy.Mismatch
	Header
	// Found are the values that the request has, joined by commas; Present is false if it has no such header.
	Found   string
	Present bool

	secret bool // the value is a Secret's
}

// Match evaluates the rules. One of them must match; header actions are those of all that match.
func (s *RuleSet) Match(req *Request) Verdict {
	var v Verdict
	for i := range s.parts {
		p := &s.parts[i]
		if !p.matchServerName(req.ServerName) {
			continue
		}
		if len(p.source.L7.HTTP) == 0 {
			if req.Method != "CONNECT" {
				v.allow(p)
			}
			continue
		}
		for j := range p.rules {
			if p.rules[j].match(req, &v.Mismatches) {
				v.allow(p)
			}
		}
	}
	return v
}

func (v *Verdict) allow(p *part) {
	if !v.Allowed {
		v.Allowed, v.Part, v.part = true, p.source, p
	}
}

// matchServerName says whether a name is one of the part's, if it has any.
func (p *part) matchServerName(name string) bool {
	if len(p.serverNames) == 0 {
		return true
	}
	for _, re := range p.serverNames {
		if re.MatchString(name) {
			return true
		}
	}
	return false
}

// matchTLS finds the part that lets a TLS connection pass that is not terminated. HTTP rules cannot be enforced on it.
func (s *RuleSet) matchTLS(name string) *part {
	for i := range s.parts {
		if p := &s.parts[i]; len(p.source.L7.HTTP) == 0 && p.matchServerName(name) {
			return p
		}
	}
	return nil
}

// match appends mismatches only if the rule matches.
func (r *httpRule) match(req *Request, mismatches *[]HeaderMismatch) bool {
	if req.Method == "CONNECT" && !r.connect {
		return false
	}
	if !r.method.match(req.Method) || !r.path.match(req.Path) || !r.host.match(req.Host) {
		return false
	}
	for i := range r.headers {
		if found, present := req.value(r.headers[i].name); !r.headers[i].match(found, present) {
			return false
		}
	}
	if len(r.matches) == 0 {
		return true
	}
	before := len(*mismatches)
	for i := range r.matches {
		m := &r.matches[i]
		found, present := req.value(m.name)
		if m.headerValue.match(found, present) {
			continue
		}
		if m.mismatch == policy.MismatchDeny {
			*mismatches = (*mismatches)[:before]
			return false
		}
		*mismatches = append(*mismatches, HeaderMismatch{
			Action: m.mismatch, Header: Header{m.name, m.value}, Found: strings.Clone(found), Present: present,
			secret: m.secret})
	}
	return true
}

func (h *headerValue) match(found string, present bool) bool {
	return present && (h.value == "" || found == h.value)
}

// value joins the values of a header by commas, as RFC 9110, section 5.3, does.
func (req *Request) value(name string) (string, bool) {
	if len(name) == 4 && strings.EqualFold(name, "host") {
		return req.Host, req.Host != ""
	}
	value, present := "", false
	for i := range req.Header {
		if !strings.EqualFold(req.Header[i].Name, name) {
			continue
		}
		if present {
			value += "," + req.Header[i].Value
		} else {
			value, present = req.Header[i].Value, true
		}
	}
	return value, present
}
