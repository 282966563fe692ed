package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"myelin/policy"
)

// Request is a flow that may not be there: from and to are as in
// "demo/client", "10.0.1.2", "world"; to may also be a Service. Port is as in
// "80/TCP", or "http/TCP" by the name that the destination's pod gives it.
type Request struct {
	From, To, Port string
	// Content is what the flow carries, where the proxy decides; nil: that is not known.
	Content *Content
	// FQDN is a DNS name that the destination's address has for the source.
	FQDN string
}

// Trace is the answer. All of its ways must be allowed for the flow to be.
type Trace struct {
	From string `json:"from"`
	To   string `json:"to"`
	Port string `json:"port"`
	// Verdict is "allowed", "denied", "audited" (denied, and let pass), "redirected" (to the proxy, which decides on
	// what the flow carries), or "mixed": some ways are allowed, others are not.
	Verdict string `json:"verdict"`
	Ways    []Way  `json:"ways"`
	// Notes are what else one should know, such as which node has more.
	Notes []string `json:"notes,omitempty"`
}

// Verdicts of traces and ways.
const (
	Allowed = "allowed"
	Denied  = "denied"
	Audited = "audited"
	Mixed   = "mixed"

	Redirected = "redirected"
)

// Way is one pair of addresses: of a family, and of a backend.
type Way struct {
	Source      Party  `json:"source"`
	Destination Party  `json:"destination"`
	Port        string `json:"port"`
	Verdict     string `json:"verdict"`
	// Egress is what the source's policies say, Ingress what the destination's.
	Egress  Side `json:"egress"`
	Ingress Side `json:"ingress"`
}

// Party is one end of a way.
type Party struct {
	Name string     `json:"name"`
	Addr netip.Addr `json:"address,omitzero"`
	// Node is where its policies are enforced, empty for what is outside.
	Node   string   `json:"node,omitempty"`
	Labels []string `json:"labels,omitempty"`
}

// String is "name address".
func (p Party) String() string {
	if !p.Addr.IsValid() || p.Name == p.Addr.String() {
		return p.Name
	}
	return p.Name + " " + p.Addr.String()
}

// Side is what one end's policies say.
type Side struct {
	Finding
	// Why is the answer in words.
	Why string `json:"why"`
	// Policies are those that isolate it or have rules for it, and that are not in force
	// as they are written, each as "Kind namespace/name is STATE".
	Policies []string `json:"policies,omitempty"`
	// Problem is why the kernel of this node may do something else.
	Problem string `json:"problem,omitempty"`
	Audit   bool   `json:"audit,omitempty"`
	// Refused: the flow is allowed, and the proxy denies what it carries.
	Refused bool `json:"refused,omitempty"`
	// Change lists what would turn the answer round: each alone does where it is
	// denied for want of a rule, all together where rules decide.
	Change []string `json:"change,omitempty"`
}

// maxWays bounds the pairs of addresses that are looked at.
const maxWays = 64

// Trace answers. Errors say what is not known, by field.
func (x *Explainer) Trace(q Request) (*Trace, error) {
	r := x.engine.DB.ReadTxn()
	from, err := x.parties(r, q.From, false)
	if err != nil {
		return nil, fmt.Errorf("--from %s: %w", q.From, err)
	}
	to, err := x.targets(r, q.To, q.Port)
	if err != nil {
		return nil, err
	}
	out := &Trace{From: q.From, To: q.To, Port: q.Port}
	for _, s := range from {
		for _, d := range to {
			if !sameFamily(s, d.Party) {
				continue
			}
			if len(out.Ways) == maxWays {
				out.Notes = append(out.Notes, fmt.Sprintf("only the first %d pairs of addresses were looked at",
					maxWays))
				break
			}
			way, err := x.way(r, s, d, &q)
			if err != nil {
				return nil, err
			}
			out.Ways = append(out.Ways, way)
		}
	}
	if len(out.Ways) == 0 {
		return nil, fmt.Errorf("--from %s and --to %s have no family of addresses in common", q.From, q.To)
	}
	out.conclude(x.engine.Node)
	return out, nil
}

// sameFamily reports whether packets can go between two ends.
func sameFamily(a, b Party) bool {
	fa, fb := a.family(), b.family()
	return fa == fb || fa == 0 || fb == 0
}

// family is 4 or 6, 0 where either may be.
func (p Party) family() int {
	switch {
	case p.Addr.Is4() || slices.Contains(p.Labels, "reserved:world-ipv4"):
		return 4
	case p.Addr.IsValid() || slices.Contains(p.Labels, "reserved:world-ipv6"):
		return 6
	}
	return 0
}

// flowEnd is the party as Explain takes it.
func (p Party) flowEnd() FlowEnd {
	if p.Addr.IsValid() {
		return FlowEnd{Addr: p.Addr}
	}
	return FlowEnd{Labels: p.Labels}
}

func (x *Explainer) way(r statedb.ReadTxn, src Party, dst target, q *Request) (Way, error) {
	w := Way{Source: src, Destination: dst.Party, Port: dst.port()}
	end := dst.flowEnd()
	if q.FQDN != "" {
		end.Names = []string{q.FQDN}
	}
	a, err := x.Explain(Flow{
		Src: src.flowEnd(), Dst: end, Proto: dst.Proto, Port: dst.First,
		SrcNode: src.Node, DstNode: dst.Node, Family: max(src.family(), dst.family()),
	})
	if err != nil {
		return w, err
	}
	w.Egress, w.Ingress = x.side(r, a.Egress, src, policy.Egress), x.side(r, a.Ingress, dst.Party, policy.Ingress)
	w.Egress.Change = changes(&w.Egress, policy.Egress, src, dst.Party, w.Port)
	w.Ingress.Change = changes(&w.Ingress, policy.Ingress, dst.Party, src, w.Port)
	w.Verdict = Allowed
	for _, s := range []*Side{&w.Egress, &w.Ingress} {
		decision := yes
		if s.Allowed() && len(s.Proxied) > 0 {
			decision = s.decide(q.Content, q.FQDN)
			s.Why = s.proxyWhy(decision)
			s.refuse(decision == no)
		}
		switch {
		case decision == no || !s.Allowed() && !s.Audit:
			w.Verdict = Denied
		case decision == depends && w.Verdict != Denied:
			w.Verdict = Redirected
		case !s.Allowed() && w.Verdict == Allowed:
			w.Verdict = Audited
		}
	}
	return w, nil
}

// side adds to a finding what the kernel of this node has of it.
func (x *Explainer) side(r statedb.ReadTxn, f Finding, of Party, dir policy.Direction) Side {
	s := Side{Finding: f, Audit: x.engine.Config.Audit, Policies: x.unlike(r, &f)}
	switch {
	case !f.Enforced && of.Node == "":
		s.Why = "allowed: " + of.Name + " is outside, and nothing is enforced there"
	case !f.Enforced:
		s.Why = fmt.Sprintf("allowed: no policy speaks of %s of %s", dir, of.Name)
	case f.Allowed() && f.Rule != nil:
		s.Why = "allowed by " + f.Rule.Origin.String()
	case f.Allowed():
		s.Why = "allowed: no rule denies it, and nothing isolates " + of.Name
		if len(f.Isolating) > 0 {
			s.Why = "allowed: this node reaches its own pods where no rule denies it"
		}
	case f.Rule != nil:
		s.Why = "denied by " + f.Rule.Origin.String()
	default:
		s.Why = "denied: no rule allows it, and " + of.Name + " is isolated by " + strings.Join(f.Isolating, ", ")
	}
	if of.Node != x.engine.Node {
		return s
	}
	for row := range x.engine.Realised.All(r) {
		if row.Pod == of.Name {
			s.Audit, s.Problem = s.Audit || row.Audit, row.Error
		}
	}
	return s
}

// unlike are the policies of a finding that are not in force as they are written.
func (x *Explainer) unlike(r statedb.ReadTxn, f *Finding) (out []string) {
	names := slices.Clone(f.Isolating)
	for _, c := range f.Rules {
		names = append(names, c.Origin.Ref.String())
	}
	for o := range x.engine.Policies.Policies.All(r) {
		if !x.engine.Config.Proxy {
			o = o.WithoutProxy()
		}
		name := o.Ref.String()
		if slices.Contains(names, name) && (o.Problem != "" || len(o.Unenforced()) > 0) {
			out = append(out, name+" is "+o.State())
		}
	}
	return out
}

// conclude works out the verdict, and where to ask for more.
func (t *Trace) conclude(node string) {
	var here bool
	var elsewhere []string
	for _, w := range t.Ways {
		switch t.Verdict {
		case "", w.Verdict:
			t.Verdict = w.Verdict
		default:
			t.Verdict = Mixed
		}
		for _, p := range []Party{w.Source, w.Destination} {
			here = here || p.Node == node
			if p.Node != "" && p.Node != node && !slices.Contains(elsewhere, p.Node) {
				elsewhere = append(elsewhere, p.Node)
			}
		}
	}
	if !here && len(elsewhere) > 0 {
		t.Notes = append(t.Notes,
			fmt.Sprintf("neither end is on this node (%s): the answer is what the rules say; ask on %s for what is "+
				"enforced there", node, strings.Join(elsewhere, " or ")))
	}
}

// port is the port as text.
func (d target) port() string {
	return policy.Port{Proto: d.Proto, First: d.First, Last: d.First}.String()
}

// target is a destination and the port there.
type target struct {
	Party
	policy.Port
}

// ParsePort reads "80/TCP", "80", "http/TCP", "8/ICMP" or "0/47": a port, an ICMP
// type, or a port's name, and a protocol, which is TCP if there is none.
func ParsePort(text string) (p policy.Port, err error) {
	number, proto, ok := strings.Cut(text, "/")
	if !ok {
		proto = "TCP"
	}
	p.Proto, ok = map[string]uint8{
		"TCP": policy.ProtoTCP, "UDP": policy.ProtoUDP, "SCTP": policy.ProtoSCTP, "ICMP": policy.ProtoICMP,
		"ICMPV6": policy.ProtoICMPv6,
	}[strings.ToUpper(proto)]
	if n, err := strconv.ParseUint(proto, 10, 8); err == nil && n > 0 {
		p.Proto, ok = uint8(n), true
	}
	if !ok {
		return p,
			fmt.Errorf("--port %s: %q is no protocol: want TCP, UDP, SCTP, ICMP, ICMPv6 or a number from 1 to 255",
				text, proto)
	}
	if n, err := strconv.ParseUint(number, 10, 16); err == nil {
		p.First, p.Last = uint16(n), uint16(n)
		return p, nil
	}
	if number == "" || number[0] >= '0' && number[0] <= '9' || number[0] == '-' {
		return p, fmt.Errorf("--port %s: %q is no port: want 0 to 65535, or a name", text, number)
	}
	p.Name = number
	return p, nil
}

// ParseFlow reads "SOURCE:PORT->DESTINATION:PORT/PROTOCOL". The source's port may
// be left out; → may stand for ->.
func ParseFlow(text string) (Request, error) {
	bad := func(what string) (Request, error) {
		return Request{}, fmt.Errorf("--flow %s: %s: want SOURCE:PORT->DESTINATION:PORT/PROTOCOL, such as "+
			"10.0.1.2:40000->[fd00::2]:80/TCP, or the ID of a flow", text, what)
	}
	from, to, ok := strings.Cut(strings.ReplaceAll(text, "→", "->"), "->")
	if !ok {
		return bad("there is no ->")
	}
	from, to = strings.TrimSpace(from), strings.TrimSpace(to)
	src, err := netip.ParseAddr(strings.Trim(from, "[]"))
	if err != nil {
		end, err := netip.ParseAddrPort(from)
		if err != nil {
			return bad("source " + strconv.Quote(from))
		}
		src = end.Addr()
	}
	to, proto, ok := strings.Cut(to, "/")
	dst, err := netip.ParseAddrPort(to)
	if err != nil || !ok {
		return bad("destination " + strconv.Quote(to))
	}
	if src.Unmap().Is4() != dst.Addr().Unmap().Is4() {
		return bad("the ends are of two families")
	}
	q := Request{From: src.Unmap().String(), To: dst.Addr().Unmap().String(), Port: fmt.Sprintf("%d/%s", dst.Port(),
		proto)}
	_, err = ParsePort(q.Port)
	return q, err
}
