package parse

import (
	"net/textproto"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/net/http/httpguts"

	"myelin/policy"
	"myelin/policy/ciliumv2"
)

// ciliumL7 reads what the proxy enforces on the flows that an item of toPorts allows; nil: nothing.
func (r *reader) ciliumL7(c *ciliumRule, at string, p *ciliumv2.PortRule) *policy.L7 {
	rules := p.Rules
	if rules == nil {
		rules = &ciliumv2.L7Rules{}
	}
	r.l7Unsupported(at, p, rules)
	some := r.l7Types(at, rules)
	if some {
		r.l7Places(c, at, p, rules)
	}
	out := &policy.L7{}
	for i := range rules.HTTP {
		out.HTTP = append(out.HTTP, r.httpRule(item(at, "rules.http", i), &rules.HTTP[i]))
	}
	for i := range rules.DNS {
		out.DNS = append(out.DNS, r.fqdn(item(at, "rules.dns", i), &rules.DNS[i]))
	}
	for i, name := range p.ServerNames {
		out.ServerNames = append(out.ServerNames, r.serverName(item(at, "serverNames", i), name))
	}
	out.Terminating = r.tlsContext(at+".terminatingTLS", p.TerminatingTLS)
	out.Originating = r.tlsContext(at+".originatingTLS", p.OriginatingTLS)
	if len(out.HTTP)+len(out.DNS)+len(out.ServerNames) == 0 && out.Terminating == nil && out.Originating == nil {
		return nil
	}
	if c.host {
		r.unenforced(at, "what is above ports is not supported for nodes")
	}
	return out
}

// l7Unsupported notes what nothing here enforces.
func (r *reader) l7Unsupported(at string, p *ciliumv2.PortRule, rules *ciliumv2.L7Rules) {
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"listener", p.Listener != nil},
		{"rules.kafka", len(rules.Kafka) > 0},
		{"rules.l7proto", rules.L7Proto != ""},
		{"rules.l7", len(rules.L7) > 0},
	} {
		if field.set {
			r.notSupported(at + "." + field.name)
		}
	}
}

// l7Types checks that rules are for one protocol, and reports whether there are any.
func (r *reader) l7Types(at string, rules *ciliumv2.L7Rules) bool {
	var types []string
	for _, list := range []struct {
		name string
		n    int
	}{
		{"http", len(rules.HTTP)}, {"kafka", len(rules.Kafka)}, {"dns", len(rules.DNS)},
		{"l7proto", len(rules.L7Proto)},
	} {
		if list.n > 0 {
			types = append(types, list.name)
		}
	}
	if len(types) > 1 {
		r.add(at+".rules", "%s can't stand in one item", strings.Join(types, " and "))
	}
	if len(rules.L7) > 0 && rules.L7Proto == "" {
		r.add(at+".rules.l7", "l7proto must be set as well")
	}
	return len(types)+len(rules.L7) > 0
}

// l7Places checks where rules stand as Cilium does.
func (r *reader) l7Places(c *ciliumRule, at string, p *ciliumv2.PortRule, rules *ciliumv2.L7Rules) {
	dns := len(rules.DNS) > 0
	switch {
	case dns && c.direction == policy.Ingress:
		r.add(at+".rules.dns", "is for egress only")
	case dns && len(p.Ports) == 0:
		r.add(at+".ports", "must be set beside rules.dns")
	case !dns && c.host:
		r.add(at+".rules", "is not for nodes")
	}
	if len(p.ServerNames) > 0 && p.TerminatingTLS == nil {
		r.add(at+".serverNames", "can't stand beside rules without terminatingTLS")
	}
	for i := range p.Ports {
		port, at := &p.Ports[i], item(at, "ports", i)
		switch {
		case port.Port == "0":
			r.add(at+".port", "must not be 0 where there are rules")
		case dns && port.EndPort != 0:
			r.add(at+".endPort", "must not be set beside rules.dns")
		case !dns && port.Protocol != "TCP":
			r.add(at+".protocol", "must be TCP where there are rules, other than dns")
		}
	}
}

// proxied are the ports of an item whose flows the proxy can read: TCP, and UDP for DNS.
func proxied(ports []policy.Port, l7 *policy.L7) (out []policy.Port) {
	for _, p := range ports {
		if p.Proto == policy.ProtoTCP || p.Proto == policy.ProtoUDP && len(l7.DNS) > 0 {
			out = append(out, p)
		}
	}
	return out
}

func (r *reader) httpRule(at string, h *ciliumv2.HTTP) policy.HTTPRule {
	out := policy.HTTPRule{Method: h.Method, Path: h.Path, Host: h.Host}
	r.regexp(at+".method", h.Method)
	r.regexp(at+".path", h.Path)
	r.regexp(at+".host", h.Host)
	for i, text := range h.Headers {
		name, value, exact := strings.Cut(text, " ")
		if exact {
			name = strings.TrimRight(name, ":")
		}
		if !httpguts.ValidHeaderFieldName(name) {
			r.add(item(at, "headers", i), "%q doesn't begin with the name of a header", text)
		}
		if name = textproto.CanonicalMIMEHeaderKey(name); exact {
			name += ": " + value
		}
		out.Headers = append(out.Headers, name)
	}
	for i := range h.HeaderMatches {
		out.HeaderMatches = append(out.HeaderMatches, r.headerMatch(item(at, "headerMatches", i), &h.HeaderMatches[i]))
	}
	return out
}

// regexp checks a regular expression (RE2), which is to match a whole value.
func (r *reader) regexp(field, text string) {
	if _, err := regexp.Compile(text); err != nil {
		r.add(field, "%q is no regular expression (RE2)", text)
	}
}

func (r *reader) headerMatch(at string, m *ciliumv2.HeaderMatch) policy.HeaderMatch {
	out := policy.HeaderMatch{Mismatch: policy.Mismatch(m.Mismatch), Name: m.Name, Value: m.Value}
	if !httpguts.ValidHeaderFieldName(m.Name) {
		r.add(at+".name", "%q is not the name of a header", m.Name)
	}
	if !slices.Contains([]policy.Mismatch{policy.MismatchDeny, policy.MismatchLog, policy.MismatchAdd,
		policy.MismatchDelete, policy.MismatchReplace}, out.Mismatch) {
		r.add(at+".mismatch", "%q is none of LOG, ADD, DELETE, REPLACE", m.Mismatch)
	}
	if m.Secret != nil {
		secret := r.secret(at+".secret", m.Secret)
		out.Secret = &secret
	}
	return out
}

// secret names a Secret: where it names no namespace, in that of the policy, or in "default" for a policy without one.
func (r *reader) secret(at string, s *ciliumv2.Secret) policy.SecretRef {
	if s.Name == "" {
		r.add(at+".name", "must name a Secret")
	}
	out := policy.SecretRef{Namespace: s.Namespace, Name: s.Name}
	switch {
	case out.Namespace != "":
	case r.namespaced:
		out.Namespace = r.ref.Namespace
	default:
		out.Namespace = metav1.NamespaceDefault
	}
	return out
}

func (r *reader) tlsContext(at string, t *ciliumv2.TLS) *policy.TLSContext {
	if t == nil {
		return nil
	}
	if t.Secret == nil {
		r.add(at, "secret must be set")
		return nil
	}
	return &policy.TLSContext{Secret: r.secret(at+".secret", t.Secret), TrustedCA: t.TrustedCA,
		Certificate: t.Certificate, PrivateKey: t.PrivateKey}
}

// namesPeers makes one peer of all names: they share a number in the kernel.
func (r *reader) namesPeers(c *ciliumRule, gap *gaps) []policy.Peer {
	var names []policy.NamePattern
	for i := range c.fqdns {
		var n policy.NamePattern
		at := item(c.path, "toFQDNs", i)
		if r.sound(at, func() { n = r.fqdn(at, &c.fqdns[i]) }) {
			names = append(names, n)
		} else {
			gap.peers = true
		}
	}
	if len(c.fqdns) > 0 && c.host {
		r.unenforced(c.path+".toFQDNs", "toFQDNs is not supported for nodes")
		gap.peers, names = true, nil
	}
	if len(names) == 0 {
		return nil
	}
	policy.SortNames(names)
	return []policy.Peer{{Names: slices.Compact(names)}}
}

// fqdn is a name or a pattern, in lower case and without the final dot.
func (r *reader) fqdn(at string, f *ciliumv2.FQDN) policy.NamePattern {
	switch {
	case (f.MatchName == "") == (f.MatchPattern == ""):
		r.add(at, "exactly one of matchName and matchPattern must be set")
	case f.MatchName != "" && !isDNSName(f.MatchName):
		r.add(at+".matchName", "%q is not a DNS name", f.MatchName)
	case f.MatchPattern != "" && !isDNSName(strings.ReplaceAll(f.MatchPattern, "*", "x")):
		r.add(at+".matchPattern", "%q is not a DNS name with wildcards", f.MatchPattern)
	}
	return policy.NamePattern{Name: bareName(f.MatchName), Pattern: bareName(f.MatchPattern)}
}

// serverName is a name, after "*." or "**." where it stands for names below that one.
func (r *reader) serverName(at, text string) string {
	name := text
	for _, wildcard := range []string{"**.", "*."} {
		if rest, ok := strings.CutPrefix(text, wildcard); ok {
			name = rest
			break
		}
	}
	if !isDNSName(name) {
		r.add(at, `%q is not a DNS name, which may begin with "*." or "**."`, text)
	}
	return bareName(text)
}

func bareName(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// maxName is how long a name may be, as Cilium has it.
const maxName = 255

// isDNSName reports whether Cilium takes a text for a name: labels of letters, digits, hyphens and underscores.
func isDNSName(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if label == "" || strings.IndexFunc(label, notInLabel) >= 0 {
			return false
		}
	}
	return true
}

func notInLabel(c rune) bool {
	return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_')
}
