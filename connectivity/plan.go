package connectivity

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// test is one line of the report.
type test struct {
	name string
	// about says what it shows, as a sentence.
	about string
	// skip is why it can't be run here, broken why it can't though it should.
	skip, broken string
	steps        []step
	// watch is what is captured between the nodes meanwhile; nil: nothing.
	watch *watch
}

// step changes objects, and then wants all of its checks to be right at once.
type step struct {
	// what is for the report, e.g. "with the policy".
	what string
	// apply are objects to make, remove those to delete again.
	apply, remove []object
	checks        []check
}

// check is a Probe from a pod, and what should come of it.
type check struct {
	from   *pod
	to     string     // for people: "far by tcp"
	target *pod       // the pod that answers in the end; nil: several
	at     netip.Addr // its address that is asked; the zero Addr: several
	port   string     // as `myelin policy trace` takes it
	probe  Probe
	deny   bool
	// by are the names that may answer; nil: any. all: each of them must be in the answer.
	by  []string
	all bool
	// one says that the same one answers each time.
	one bool
	// client is the address that the server must see; empty: any.
	client string
}

// Times that a test is given.
const (
	// answerTime bounds one probe, denyTime one that should not be answered.
	answerTime = 2 * time.Second
	denyTime   = time.Second
)

// verdict says what is wrong with an answer; empty: nothing.
func (c check) verdict(a Answer) string {
	switch {
	case c.deny && a.Error == "":
		return fmt.Sprintf("expected no answer, but there was one%s", from(a.By))
	case c.deny:
		return ""
	case a.Error != "":
		return fmt.Sprintf("expected an answer%s, got: %s", from(c.by), a.Error)
	case c.all && !slices.Equal(a.By, sorted(c.by)):
		return fmt.Sprintf("expected %s, got %s", strings.Join(sorted(c.by), " "), strings.Join(a.By, " "))
	case len(c.by) > 0 && slices.ContainsFunc(a.By, func(s string) bool { return !slices.Contains(c.by, s) }):
		return fmt.Sprintf("expected an answer%s, got one%s", from(c.by), from(a.By))
	case c.one && len(a.By) != 1:
		return fmt.Sprintf("expected one and the same server each time, got answers%s", from(a.By))
	case c.client != "" && a.Client != c.client:
		return fmt.Sprintf("expected to be seen as %s, the server saw %s", c.client, a.Client)
	}
	return ""
}

func from(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " from " + strings.Join(names, " or ")
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// planner makes the tests for one cluster.
type planner struct {
	*facts
	tests []test
}

// plan is every test, also those that can't be run in this cluster, which say why.
func plan(f *facts) []test {
	p := &planner{facts: f}
	p.pods()
	p.nodes()
	p.services()
	p.names()
	p.world()
	p.encrypted()
	p.policies()
	return p.tests
}

func (p *planner) add(name, about, skip string, steps ...step) {
	t := test{name: name, about: about, skip: skip, steps: steps}
	if skip == "" {
		t.broken = p.obstacle(steps)
	}
	p.tests = append(p.tests, t)
}

// obstacle is why steps can't be made; empty: they can.
func (p *planner) obstacle(steps []step) (problem string) {
	checks := 0
	for _, s := range steps {
		checks += len(s.checks)
		for _, c := range s.checks {
			problem = cmp.Or(problem, c.unready())
		}
	}
	if checks > 0 || problem != "" {
		return problem
	}
	// They would ask a pod that has no address.
	for _, one := range p.all() {
		problem = cmp.Or(problem, one.problem)
	}
	return cmp.Or(problem, "nothing has an address that could be asked")
}

// unready is why a check can't be made.
func (c check) unready() string {
	if c.from.problem != "" {
		return c.from.problem
	}
	if c.target != nil {
		return c.target.problem
	}
	return ""
}

// oneNode is why there is nothing between nodes.
func (p *planner) oneNode() string {
	if p.near == p.far {
		return "there is one node only"
	}
	return ""
}

// reach are checks of a server of lab serve at its addresses: by http, tcp, udp and
// icmp.
func (p *planner) reach(client, server *pod) (list []check) {
	for _, a := range server.addrs {
		web := p.http(client, server, a)
		if client.own(a) && !client.host && !server.host {
			web.client = client.ip(a).String()
		}
		tcp, udp := netip.AddrPortFrom(a, server.ports.tcp), netip.AddrPortFrom(a, server.ports.udp)
		list = append(list, web, server.check(client, a, fmt.Sprintf("%d/TCP", tcp.Port()), "tcp://"+tcp.String()),
			server.check(client, a, fmt.Sprintf("%d/UDP", udp.Port()), "udp://"+udp.String()),
			server.check(client, a, "8/ICMP", "icmp://"+host(a)))
	}
	return list
}

// check is one of a pod at one of its addresses.
func (p *pod) check(from *pod, at netip.Addr, port, url string) check {
	scheme, _, _ := strings.Cut(url, ":")
	return check{from: from, target: p, at: at, to: p.name + " by " + scheme, port: port,
		probe: Probe{URL: url, Timeout: answerTime}}
}

func (p *planner) http(client, server *pod, a netip.Addr) check {
	at := netip.AddrPortFrom(a, server.ports.http)
	c := server.check(client, a, fmt.Sprintf("%d/TCP", at.Port()), "http://"+at.String()+"/")
	c.by = []string{server.name}
	return c
}

// host is an address as URLs have it.
func host(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}

// denied turns checks round. Those without an answer take their whole time.
func denied(list []check) []check {
	out := slices.Clone(list)
	for i := range out {
		out[i].deny, out[i].probe.Timeout = true, denyTime
	}
	return out
}
