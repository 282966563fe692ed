package connectivity

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// cluster is facts of two nodes, or of one, with both families or one.
func cluster(nodes []string, six bool) *facts {
	f := &facts{
		crew: newCrew("t", nodes[0], nodes[len(nodes)-1]), near: nodes[0], far: nodes[len(nodes)-1],
		domain:     "cluster.local",
		kubernetes: netip.MustParseAddr("10.96.0.1"), addresses: map[string][]netip.Addr{},
		nodePort: map[string]uint16{"nodeport": 30001, "local": 30002},
	}
	addrs := func(four, other string) []netip.Addr {
		list := []netip.Addr{netip.MustParseAddr(four)}
		if six {
			list = append(list, netip.MustParseAddr(other))
		}
		return list
	}
	hosts := map[string][]netip.Addr{nodes[0]: addrs("192.0.2.1", "2001:db8::1"),
		nodes[len(nodes)-1]: addrs("192.0.2.2", "2001:db8::2")}
	for i, p := range f.all() {
		last := string(rune('1' + i))
		p.addrs, p.hostAddrs = addrs("10.0.0."+last, "fd00::"+last), hosts[p.node]
		if p.host {
			p.addrs = p.hostAddrs
		}
	}
	for i, name := range []string{"echo", "self", "sticky", "nodeport", "local", "balanced"} {
		last := string(rune('1' + i))
		f.addresses[name] = addrs("10.96.1."+last, "fd00:96::"+last)
	}
	return f
}

func find(t *testing.T, tests []test, name string) test {
	t.Helper()
	i := slices.IndexFunc(tests, func(t test) bool { return t.name == name })
	if i < 0 {
		t.Fatalf("there is no test %s", name)
	}
	return tests[i]
}

// urls are what a test asks, step by step; what should not be answered has a "!".
func urls(t test) (list []string) {
	for _, s := range t.steps {
		for _, c := range s.checks {
			mark := ""
			if c.deny {
				mark = "!"
			}
			list = append(list, mark+c.from.name+" "+c.probe.URL)
		}
	}
	return list
}

func TestPlan(t *testing.T) {
	tests := plan(cluster([]string{"n1", "n2"}, true))
	names := map[string]bool{}
	for _, one := range tests {
		if names[one.name] {
			t.Errorf("%s is there twice", one.name)
		}
		names[one.name] = true
		if one.broken != "" {
			t.Errorf("%s: %s", one.name, one.broken)
		}
	}
	want := []string{
		"client http://10.0.0.3:8080/", "client tcp://10.0.0.3:8081", "client udp://10.0.0.3:8082",
		"client icmp://10.0.0.3",
		"client http://[fd00::3]:8080/", "client tcp://[fd00::3]:8081", "client udp://[fd00::3]:8082",
		"client icmp://[fd00::3]",
	}
	if got := urls(find(t, tests, "pod-to-pod/same-node")); !slices.Equal(got, want) {
		t.Errorf("pod-to-pod/same-node asks\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	want = []string{
		"client http://10.0.0.4:8080/", "client http://[fd00::4]:8080/", "!client http://10.0.0.3:8080/",
		"!client http://[fd00::3]:8080/",
		"client http://10.0.0.4:8080/", "client http://[fd00::4]:8080/", "client http://10.0.0.3:8080/",
		"client http://[fd00::3]:8080/",
	}
	if got := urls(find(t, tests, "policy/allow-by-cidr")); !slices.Equal(got, want) {
		t.Errorf("policy/allow-by-cidr asks\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	want = []string{
		"client http://192.0.2.1:30001/", "client http://[2001:db8::1]:30001/", "client http://192.0.2.2:30001/",
		"client http://[2001:db8::2]:30001/",
	}
	if got := urls(find(t, tests, "service/node-port/from-pod")); !slices.Equal(got, want) {
		t.Errorf("service/node-port/from-pod asks\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestPlanSkips: what can't be there is left out with a reason, what should be there fails.
func TestPlanSkips(t *testing.T) {
	f := cluster([]string{"n1"}, false)
	f.noDNS, f.noCilium = "no DNS", "no CRD"
	f.hostPort.problem = "pod t/hostport doesn't run on node n1: NodePorts"
	tests := plan(f)
	for name, want := range map[string]string{
		"pod-to-pod/other-node": "there is one node only", "dns/cluster": "no DNS", "policy/egress-to-entity": "no CRD",
		"world":                 "--external-target is not given",
		"service/load-balancer": "Services of type LoadBalancer get no addresses here", "host-port": "",
		"pod-to-pod/same-node": "",
	} {
		if got := find(t, tests, name).skip; got != want {
			t.Errorf("%s is left out for %q, want %q", name, got, want)
		}
	}
	if got := find(t, tests, "host-port").broken; got != f.hostPort.problem {
		t.Errorf("host-port can't be made for %q, want %q", got, f.hostPort.problem)
	}
	if got := find(t, tests, "pod-to-pod/same-node").broken; got != "" {
		t.Errorf("pod-to-pod/same-node can't be made for %q", got)
	}
	for _, one := range tests {
		for _, url := range urls(one) {
			if strings.Contains(url, "[") {
				t.Errorf("%s asks %s, where there is no IPv6", one.name, url)
			}
		}
	}
}

func TestVerdict(t *testing.T) {
	for name, tc := range map[string]struct {
		check  check
		answer Answer
		want   string
	}{
		"answered": {check{by: []string{"a", "b"}}, Answer{By: []string{"b"}}, ""},
		"by another": {check{by: []string{"a"}}, Answer{By: []string{"b"}},
			"expected an answer from a, got one from b"},
		"not answered": {check{by: []string{"a"}}, Answer{Error: "no answer within 2s"},
			"expected an answer from a, got: no answer within 2s"},
		"denied": {check{deny: true}, Answer{Error: "no answer within 1s"}, ""},
		"not denied": {check{deny: true}, Answer{By: []string{"a"}},
			"expected no answer, but there was one from a"},
		"stays": {check{one: true, by: []string{"a", "b"}}, Answer{By: []string{"a"}}, ""},
		"doesn't stay": {check{one: true, by: []string{"a", "b"}}, Answer{By: []string{"a", "b"}},
			"expected one and the same server each time, got answers from a or b"},
		"all names": {check{all: true, by: []string{"10.0.0.2", "10.0.0.1"}},
			Answer{By: []string{"10.0.0.1", "10.0.0.2"}}, ""},
		"a name too few": {check{all: true, by: []string{"10.0.0.2", "10.0.0.1"}},
			Answer{By: []string{"10.0.0.1"}}, "expected 10.0.0.1 10.0.0.2, got 10.0.0.1"},
		"seen as itself": {check{client: "10.0.0.1"}, Answer{Client: "10.0.0.1"}, ""},
		"seen as another": {check{client: "10.0.0.1"}, Answer{Client: "192.0.2.1"},
			"expected to be seen as 10.0.0.1, the server saw 192.0.2.1"},
		"any server": {check{}, Answer{}, ""},
	} {
		if got := tc.check.verdict(tc.answer); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}
