package explain

import (
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/replay"
)

// decide asks about a flow. One to a Service whose backend wasn't recorded is decided if all backends have the same
// verdicts, and the destination is one of them then.
func (p *player) decide(f replay.Flow, source, seen, destination *replayedEnd) (before, after Answer, to *replayedEnd,
	problem string) {
	r := p.explainer.engine.DB.ReadTxn()
	s, port := p.frontend(r, f, destination)
	if s == nil {
		before, after, problem = p.ask(f, source, seen, destination)
		return before, after, destination, problem
	}
	targets, err := p.explainer.backends(r, s, port)
	if err != nil {
		return before, after, destination, "to Service " + s.Key().String() + ", which has no backends"
	}
	for _, t := range targets {
		if t.Addr.Is4() != destination.End.Addr.Is4() {
			continue
		}
		backend := &replayedEnd{End: replay.End{Addr: t.Addr}, FlowEnd: FlowEnd{Addr: t.Addr}}
		p.resolveEnd(r, backend)
		p.setAudit(backend)
		g := f
		g.Port = t.First
		b, a, problem := p.ask(g, source, seen, backend)
		if problem != "" {
			return before, after, destination, problem
		}
		if to == nil {
			before, after, to = b, a, backend
			continue
		}
		if !sameVerdict(b, before, source, backend) || !sameVerdict(a, after, source, backend) {
			return before, after, destination, "to Service " + s.Key().String() +
				", whose backends have other verdicts than each other, and none was recorded"
		}
	}
	if to == nil {
		return before, after, destination, "to Service " + s.Key().String() + ", which has no backends of the family"
	}
	return before, after, to, ""
}

func sameVerdict(a, b Answer, source, destination *replayedEnd) bool {
	was, _ := verdictOf(a, source, destination)
	is, _ := verdictOf(b, source, destination)
	return was.Verdict == is.Verdict
}

// frontend is the Service that a flow is to, if no backend was recorded, and its port.
func (p *player) frontend(r statedb.ReadTxn, f replay.Flow, destination *replayedEnd) (*cluster.Service, policy.Port) {
	if destination.Pod != "" || destination.problem != "" {
		return nil, policy.Port{}
	}
	s := p.explainer.service(r, destination.End.Addr.String())
	if namespace, name, ok := strings.Cut(f.Service, "/"); ok && s == nil {
		key := cluster.Key{Namespace: namespace, Name: name}
		s, _, _ = p.explainer.engine.Cluster.Services.Get(r, cluster.ServiceByKey(key))
	}
	if s == nil {
		return nil, policy.Port{}
	}
	own := slices.Contains(slices.Concat(s.ClusterIPs, s.ExternalIPs, s.Ingress), destination.End.Addr)
	for _, q := range s.Ports {
		if protocol(q.Protocol) == f.Proto && (own && q.Port == f.Port || !own && q.NodePort == f.Port && f.Port != 0) {
			return s, policy.Port{Proto: f.Proto, First: q.Port, Last: q.Port}
		}
	}
	return nil, policy.Port{}
}
