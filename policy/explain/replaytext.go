package explain

import (
	"cmp"
	"slices"
	"strings"

	"myelin/policy"
	"myelin/policy/compile"
	"myelin/policy/replay"
)

func question(f replay.Flow, source, destination *replayedEnd) Flow {
	to := destination.FlowEnd
	to.Names = strings.Fields(f.Names)
	return Flow{Src: source.FlowEnd, Dst: to, Proto: f.Proto, Port: f.Port, SrcNode: source.node,
		DstNode: destination.node}
}

// proxied completes an answer by what the proxy makes of a content; false: that depends on what is not known of it.
func (a *Answer) proxied(recorded replay.Content) bool {
	c := &Content{HTTP: recorded.HTTP, Host: recorded.Host, DNS: recorded.DNS, Partial: true}
	fqdn, _, _ := strings.Cut(recorded.Names, " ")
	for _, f := range []*Finding{&a.Egress, &a.Ingress} {
		if !f.Allowed() || len(f.Proxied) == 0 {
			continue
		}
		switch f.decide(c, fqdn) {
		case no:
			f.Action = compile.Denied.String()
		case depends:
			return false
		}
	}
	return true
}

// verdictOf is what both ends together say, and the end that decides.
func verdictOf(a Answer, source, destination *replayedEnd) (v replay.Verdict, decides *replayedEnd) {
	v, decides = replay.Verdict{Verdict: Allowed}, destination
	sides := []struct {
		*Finding
		dir policy.Direction
		end *replayedEnd
	}{{&a.Egress, policy.Egress, source}, {&a.Ingress, policy.Ingress, destination}}
	for _, s := range sides {
		if s.Allowed() {
			if s.Rule != nil && v.Verdict == Allowed {
				v.Direction, v.Rule, decides = s.dir.String(), s.place(), s.end
			}
			continue
		}
		word := Denied
		if s.end.audit {
			word = Audited
		}
		if v.Verdict == Denied || v.Verdict == word { // the first one that denies
			continue
		}
		v, decides = replay.Verdict{Verdict: word, Direction: s.dir.String(), Rule: s.place()}, s.end
		if s.Rule == nil {
			v.Isolating = strings.Join(s.Isolating, ", ")
		}
	}
	return v, decides
}

// recorded is the verdict that policies had. What is denied at the destination was forwarded by the source's node.
func recorded(f replay.Flow) string {
	switch {
	case f.Denied > 0 && f.Delivered > 0:
		return Mixed
	case f.Denied > 0:
		return Denied
	case f.Audited > 0:
		return Audited
	}
	return Allowed
}

func portText(f replay.Flow) string {
	return policy.Port{Proto: f.Proto, First: f.Port, Last: f.Port}.String()
}

// name is the end for people.
func (e *replayedEnd) name() string {
	switch {
	case e.isNode:
		return "node/" + cmp.Or(e.node, e.End.Addr.String())
	case e.Pod != "":
		return e.Namespace + "/" + e.Pod
	}
	return e.End.Addr.String()
}

// owner is the workload, or the node.
func (e *replayedEnd) owner() string {
	switch {
	case e.isNode:
		return "Node " + cmp.Or(e.node, e.End.Addr.String())
	case e.Workload != "":
		kind, name, _ := strings.Cut(e.Workload, " ")
		return kind + " " + e.Namespace + "/" + name
	case e.Pod != "":
		return "Pod " + e.Namespace + "/" + e.Pod
	}
	return "outside"
}

func (p *player) add(owner string, c replay.Change) {
	o := p.owners[owner]
	if o == nil {
		o = &replay.Owner{Owner: owner, Flows: []replay.Change{}}
		p.owners[owner] = o
	}
	o.Flows = append(o.Flows, c)
	if !c.Changed {
		return
	}
	p.result.Changed++
	switch c.After.Verdict {
	case Denied:
		o.Denied += c.Connections
	case Audited:
		o.Audited += c.Connections
	default:
		o.Allowed += c.Connections
	}
}

// finish sorts: owners by how many connections change, then by name.
func (p *player) finish() *replay.Result {
	for _, o := range p.owners {
		slices.SortStableFunc(o.Flows, func(a, b replay.Change) int {
			return cmp.Or(cmp.Compare(b.Connections, a.Connections), strings.Compare(a.Source, b.Source),
				strings.Compare(a.Destination, b.Destination), strings.Compare(a.Port, b.Port))
		})
		p.result.Owners = append(p.result.Owners, *o)
	}
	slices.SortFunc(p.result.Owners, func(a, b replay.Owner) int {
		return cmp.Or(cmp.Compare(b.Denied+b.Allowed+b.Audited, a.Denied+a.Allowed+a.Audited),
			strings.Compare(a.Owner, b.Owner))
	})
	for _, u := range p.undecided {
		p.result.Undecided = append(p.result.Undecided, *u)
	}
	slices.SortFunc(p.result.Undecided, func(a, b replay.Undecided) int { return strings.Compare(a.Reason, b.Reason) })
	return p.result
}
