package explain

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/policy/compile"
	"myelin/policy/identity"
	"myelin/policy/replay"
)

// Replay compares what policies say of recorded flows before and after an edit. Nothing of the kernel changes. With
// all, the result has flows that don't change, too. When ctx ends, it returns what it has found until then.
func (x *Explainer) Replay(ctx context.Context, edit Edit, rec *replay.Recording, all bool) (*replay.Result, error) {
	before, err := x.engine.Shadow()
	if err != nil {
		return nil, err
	}
	after, err := x.engine.Shadow()
	if err != nil {
		return nil, err
	}
	d := &differ{ctx: ctx, explainer: x, before: before, after: after, out: &Diff{}}
	d.apply(edit)
	p := &player{differ: d, all: all, owners: map[string]*replay.Owner{}, undecided: map[string]*replay.Undecided{},
		result: &replay.Result{Owners: []replay.Owner{}, Undecided: []replay.Undecided{}}}
	for _, o := range d.out.Objects {
		p.result.Objects = append(p.result.Objects, replay.Object(o))
	}
	p.resolve(rec.Ends)
	for i, f := range rec.Flows {
		if ctx.Err() != nil {
			p.result.Unfinished = fmt.Sprintf("time was over after %d of %d flows", i, len(rec.Flows))
			break
		}
		if err := p.play(f); err != nil {
			return nil, fmt.Errorf("flow %d of the recording: %w", i, err)
		}
	}
	return p.finish(), nil
}

// player compares the verdicts on recorded flows.
type player struct {
	*differ
	all       bool
	ends      []replayedEnd
	audited   map[string]bool // pods of this node whose denials are only reported
	owners    map[string]*replay.Owner
	undecided map[string]*replay.Undecided
	result    *replay.Result
}

// replayedEnd is a recorded end, with what the tables add.
type replayedEnd struct {
	replay.End
	FlowEnd
	node    string // that it is on
	problem string // why nothing can be said of it
	// gone: the pod isn't at its address any more, so that the names of its ports aren't known.
	gone bool
	// isNode: it is a node, whose labels depend on where the other end is.
	isNode bool
	audit  bool // its denials are only reported
}

func (p *player) resolve(ends []replay.End) {
	r := p.explainer.engine.DB.ReadTxn()
	p.audited = map[string]bool{}
	for row := range p.explainer.engine.Realised.All(r) {
		p.audited[row.Pod] = row.Audit
	}
	for _, e := range ends {
		out := replayedEnd{End: e, FlowEnd: FlowEnd{Addr: e.Addr.Unmap()}, node: e.Node}
		p.resolveEnd(r, &out)
		p.setAudit(&out)
		p.ends = append(p.ends, out)
	}
}

func (p *player) setAudit(e *replayedEnd) {
	e.audit = p.explainer.engine.Config.Audit || e.Pod != "" && p.audited[e.Namespace+"/"+e.Pod]
}

// resolveEnd completes an end by the tables: labels as they were recorded count, and what they don't say is as now.
func (p *player) resolveEnd(r statedb.ReadTxn, e *replayedEnd) {
	has := func(labels ...string) bool {
		return slices.ContainsFunc(labels, func(l string) bool { return slices.Contains(e.End.Labels, l) })
	}
	now := p.before.LabelsAt(e.FlowEnd.Addr)
	pod, node := p.ownerOf(r, e.FlowEnd.Addr)
	switch {
	case has("reserved:world", "reserved:world-ipv4", "reserved:world-ipv6"):
		e.FlowEnd.Labels, e.node = []string{compileWorld(e.FlowEnd.Addr)}, ""
		if has("reserved:kube-apiserver") {
			e.FlowEnd.Labels = append(e.FlowEnd.Labels, "reserved:kube-apiserver")
		}
	case has("reserved:remote-node", "reserved:host"):
		e.FlowEnd.Labels, e.isNode = e.End.Labels, true
		if node != nil {
			e.node = node.Name
		}
	case len(e.End.Labels) > 0:
		e.FlowEnd.Labels = e.End.Labels
		if pod != nil && pod.Namespace == e.Namespace && pod.Name == e.Pod {
			e.node = pod.NodeName
		} else {
			e.gone = true
		}
	case pod != nil:
		e.FlowEnd.Labels, e.node = now, pod.NodeName
		e.Namespace, e.Pod = pod.Namespace, pod.Name
	case node != nil:
		e.FlowEnd.Labels, e.node, e.isNode = now, node.Name, true
	case p.inPodCIDR(r, e.FlowEnd.Addr):
		e.problem = "its labels were not recorded, and no pod has the address now"
	default:
		e.FlowEnd.Labels = now
	}
}

// compileWorld is the label of what is outside of the cluster.
func compileWorld(a netip.Addr) string {
	if a.Is6() {
		return "reserved:world-ipv6"
	}
	return "reserved:world-ipv4"
}

// ownerOf is the pod or the node that has an address now.
func (p *player) ownerOf(r statedb.ReadTxn, a netip.Addr) (*cluster.Pod, *cluster.Node) {
	tables := p.explainer.engine.Cluster
	for pod := range tables.Pods.List(r, cluster.PodsByAddress(a)) {
		if pod.OwnsAddresses() {
			return pod, nil
		}
	}
	for n := range tables.Nodes.All(r) {
		if slices.Contains(identity.NodeAddresses(n), a) {
			return nil, n
		}
	}
	return nil, nil
}

func (p *player) inPodCIDR(r statedb.ReadTxn, a netip.Addr) bool {
	for n := range p.explainer.engine.Cluster.Nodes.All(r) {
		if slices.ContainsFunc(n.PodCIDRs, func(c netip.Prefix) bool { return c.Contains(a) }) {
			return true
		}
	}
	return false
}

// play decides about one flow.
func (p *player) play(f replay.Flow) error {
	for _, i := range []int{f.Source, f.Seen, f.Destination} {
		if i < 0 || i >= len(p.ends) {
			return fmt.Errorf("end %d: there are %d", i, len(p.ends))
		}
	}
	source, seen, destination := &p.ends[f.Source], &p.ends[f.Seen], &p.ends[f.Destination]
	before, after, destination, problem := p.decide(f, source, seen, destination)
	if problem != "" {
		u := p.undecided[problem]
		if u == nil {
			u = &replay.Undecided{Reason: problem,
				Example: source.name() + " -> " + p.ends[f.Destination].name() + " " + portText(f)}
			p.undecided[problem] = u
		}
		u.Events += f.Events
		return nil
	}
	p.result.Flows++
	p.result.Connections += f.Connections
	was, subject := verdictOf(before, source, destination)
	will, decides := verdictOf(after, source, destination)
	if will.Verdict == Allowed {
		decides = subject
	}
	to := &p.ends[f.Destination]
	c := replay.Change{Source: source.name(), Destination: to.name(), SourceAddress: source.End.Addr,
		DestinationAddress: to.End.Addr, Service: f.Service, Port: portText(f), Proto: f.Proto, Number: f.Port,
		Connections: f.Connections, Events: f.Events, Recorded: recorded(f),
		Changed: was.Verdict != will.Verdict, Before: was, After: will}
	if seen != source {
		c.SeenAddress = seen.End.Addr
	}
	if c.Recorded != was.Verdict && c.Recorded != Mixed {
		if p.result.Unlike++; p.result.UnlikeExample == "" {
			p.result.UnlikeExample = fmt.Sprintf("%s -> %s %s was %s, and is %s now", c.Source, c.Destination, c.Port,
				c.Recorded, was.Verdict)
		}
	}
	if c.Changed || p.all {
		p.add(decides.owner(), c)
	}
	return nil
}

// ask asks both worlds. The egress is the source's, the ingress of what the destination sees.
func (p *player) ask(f replay.Flow, source, seen, destination *replayedEnd) (before, after Answer, problem string) {
	for _, e := range []*replayedEnd{source, seen, destination} {
		if e.problem != "" {
			return before, after, e.name() + ": " + e.problem
		}
	}
	for _, pair := range [][2]*replayedEnd{{source, destination}, {destination, source}, {seen, destination},
		{destination, seen}} {
		if e, other := pair[0], pair[1]; e.isNode && (e.node == "" || other.node == "" && other.Pod != "") {
			return before, after, "which node " + e.name() + " or " + other.name() + " is (on) is not known"
		}
	}
	var err error
	for _, w := range []struct {
		compiler *compile.Compiler
		to       *Answer
	}{{p.before, &before}, {p.after, &after}} {
		*w.to, err = p.explainer.evaluate(w.compiler, question(f, source, destination))
		if err == nil && seen != source {
			var there Answer
			there, err = p.explainer.evaluate(w.compiler, question(f, seen, destination))
			w.to.Ingress, w.to.named = there.Ingress, w.to.named || there.named
		}
		if err != nil {
			return before, after, err.Error()
		}
		if !w.to.proxied(f.Content) {
			return before, after, "the proxy decides, on what was not recorded of it"
		}
		if destination.gone && w.to.named {
			return before, after, destination.name() + " is gone, and a rule names one of its ports"
		}
	}
	return before, after, ""
}
