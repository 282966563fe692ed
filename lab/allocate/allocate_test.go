package allocate

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func ranges(prefixes ...string) Ranges {
	r := Ranges{FirstPort: 30000, LastPort: 32767}
	for _, p := range prefixes {
		r.Services = append(r.Services, netip.MustParsePrefix(p))
	}
	return r
}

func dual() Ranges { return ranges("10.96.0.0/16", "fd00:96::/112") }

func service(t *testing.T, name, spec string) *corev1.Service {
	t.Helper()
	s := &corev1.Service{}
	if err := yaml.UnmarshalStrict([]byte("metadata: {namespace: demo, name: "+name+"}\nspec: {"+spec+"}\n"),
		s); err != nil {
		t.Fatal(err)
	}
	return s
}

// all allocates for several Services, and returns the text of faults.
func all(r Ranges, services ...*corev1.Service) string {
	a := New(r)
	var faults []string
	for _, s := range services {
		if err := a.Take(s); err != nil {
			faults = append(faults, s.Name+": "+err.Error())
		}
	}
	for _, s := range services {
		if err := a.Complete(s, nil); err != nil {
			faults = append(faults, s.Name+": "+err.Error())
		}
	}
	return strings.Join(faults, "\n")
}

func families(s *corev1.Service) string {
	return fmt.Sprint(s.Spec.IPFamilies, len(s.Spec.ClusterIPs))
}

// Families and addresses are as an API server defaults them.
func TestFamilies(t *testing.T) {
	v6first := ranges("fd00:96::/112", "10.96.0.0/16")
	for _, c := range []struct {
		ranges     Ranges
		spec, want string
	}{
		{dual(), "", "[IPv4] 1"},
		{v6first, "", "[IPv6] 1"},
		{dual(), "ipFamilies: [IPv6]", "[IPv6] 1"},
		{dual(), "ipFamilyPolicy: PreferDualStack", "[IPv4 IPv6] 2"},
		{dual(), "ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv6]", "[IPv6 IPv4] 2"},
		{dual(), "ipFamilyPolicy: RequireDualStack, clusterIP: 10.96.0.7", "[IPv4 IPv6] 2"},
		{ranges("10.96.0.0/16"), "ipFamilyPolicy: PreferDualStack", "[IPv4] 1"},
		{dual(), "clusterIP: None", "[] 0"},
		{dual(), "type: ExternalName, externalName: example.com", "[] 0"},
		{dual(), "clusterIP: 10.96.0.7", "[] 0"}, // complete: left as it is
	} {
		s := service(t, "web", c.spec)
		if faults := all(c.ranges, s); faults != "" || families(s) != c.want {
			t.Errorf("%s: %s %s, want %s", c.spec, families(s), faults, c.want)
		}
		for _, text := range s.Spec.ClusterIPs {
			addr := netip.MustParseAddr(text)
			if !dual().Services[0].Contains(addr) && !dual().Services[1].Contains(addr) {
				t.Errorf("%s: %s is in no range", c.spec, addr)
			}
		}
	}
}

// Refusals name the field and the Service that has what is asked for.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		ranges            Ranges
		first, then, want string
	}{
		{dual(), "clusterIP: 10.96.0.7", "clusterIP: 10.96.0.7",
			"b: spec.clusterIP: 10.96.0.7 is allocated to Service demo/a"},
		{dual(), "clusterIP: 10.96.0.7", `clusterIP: "fd00:96::1", clusterIPs: ["fd00:96::1", 10.96.0.7]`,
			"b: spec.clusterIPs[1]: 10.96.0.7 is allocated to Service demo/a"},
		{dual(), "type: NodePort, ports: [{port: 80, nodePort: 30080}]",
			"type: NodePort, ports: [{port: 1}, {port: 2, nodePort: 30080}]",
			"b: spec.ports[1].nodePort: TCP/30080 is allocated to Service demo/a"},
		{dual(), "type: NodePort, ports: [{port: 80, nodePort: 80}]", "",
			"a: spec.ports[0].nodePort: 80 is not in the range of node ports, 30000 to 32767"},
		{ranges("10.96.0.0/16"), "ipFamilyPolicy: RequireDualStack", "",
			"a: spec.ipFamilyPolicy: RequireDualStack: the cluster has one range of Services"},
		{ranges("10.96.0.0/16"), "ipFamilies: [IPv6]", "",
			"a: spec.ipFamilies[0]: IPv6: the cluster has no range of Services of it"},
		{ranges("10.96.0.0/31"), "", "", "b: spec.clusterIPs: 10.96.0.0/31 has no address left"},
		{Ranges{Services: dual().Services, FirstPort: 30000, LastPort: 30000},
			"type: NodePort, ports: [{port: 80}, {port: 81}]", "",
			"a: spec.ports[1].nodePort: no port from 30000 to 30000 is left"},
		// Ports of two protocols are two ports, and those of a ClusterIP Service are on no node.
		{dual(), "type: NodePort, ports: [{port: 53, nodePort: 30053}]",
			"type: NodePort, ports: [{port: 53, protocol: UDP, nodePort: 30053}]", ""},
		{dual(), "type: NodePort, ports: [{port: 53, nodePort: 30053}]", "ports: [{port: 53, nodePort: 30053}]", ""},
	} {
		if got := all(c.ranges, service(t, "a", c.first), service(t, "b", c.then)); got != c.want {
			t.Errorf("%s; %s: %s, want %s", c.first, c.then, got, c.want)
		}
	}
}

// Node ports: of each kind of Service, and for two protocols of one port.
func TestNodePorts(t *testing.T) {
	ports := func(s *corev1.Service) []bool {
		var have []bool
		for _, p := range s.Spec.Ports {
			have = append(have, p.NodePort >= 30086 && p.NodePort <= 32767)
		}
		return append(have, s.Spec.HealthCheckNodePort != 0)
	}
	const two = "ports: [{name: a, port: 53}, {name: b, port: 53, protocol: UDP}]"
	for spec, want := range map[string]string{
		"type: NodePort, " + two:     "[true true false]",
		"type: LoadBalancer, " + two: "[true true false]",
		"type: LoadBalancer, allocateLoadBalancerNodePorts: false, " + two:          "[false false false]",
		"type: LoadBalancer, externalTrafficPolicy: Local, " + two:                  "[true true true]",
		"type: ClusterIP, " + two:                                                   "[false false false]",
		"type: NodePort, ports: [{port: 80, nodePort: 30123}, {name: b, port: 81}]": "[true true false]",
	} {
		s := service(t, "web", spec)
		if faults := all(dual(), s); faults != "" || fmt.Sprint(ports(s)) != want {
			t.Errorf("%s: %v %s, want %s", spec, ports(s), faults, want)
		}
		if strings.HasSuffix(spec, two) && s.Spec.Ports[0].NodePort != s.Spec.Ports[1].NodePort {
			t.Errorf("%s: two node ports %d and %d", spec, s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort)
		}
	}
}

// The same Services get the same in another cluster, all get something else, and a later version keeps what it had.
func TestStable(t *testing.T) {
	make := func() (services []*corev1.Service) {
		for i := range 500 {
			services = append(
				services,
				service(t, fmt.Sprint("s", i), "type: NodePort, ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]"),
			)
		}
		return services
	}
	one, two := make(), make()
	if faults := all(dual(), one...) + all(dual(), two...); faults != "" {
		t.Fatal(faults)
	}
	seen := map[string]bool{}
	for i, s := range one {
		has := fmt.Sprint(s.Spec.ClusterIPs, s.Spec.Ports)
		if other := fmt.Sprint(two[i].Spec.ClusterIPs, two[i].Spec.Ports); has != other {
			t.Fatalf("%s has %s, and %s elsewhere", s.Name, has, other)
		}
		for _, text := range append(s.Spec.ClusterIPs, fmt.Sprint(s.Spec.Ports[0].NodePort)) {
			if seen[text] {
				t.Fatalf("%s is there twice", text)
			}
			seen[text] = true
		}
	}
	a := New(dual())
	for _, s := range one[1:] {
		a.Take(s)
	}
	first := one[0]
	later := service(
		t,
		"s0",
		"type: NodePort, ipFamilyPolicy: PreferDualStack, ports: [{name: x, port: 90}, {port: 80}]",
	)
	first.Spec.ClusterIPs, first.Spec.ClusterIP, first.Spec.Ports[0].NodePort = []string{
		"10.96.0.2",
		"fd00:96::2",
	}, "10.96.0.2", 30001
	if err := a.Complete(later, first); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(later.Spec.ClusterIPs) != "[10.96.0.2 fd00:96::2]" || later.Spec.Ports[1].NodePort != 30001 ||
		later.Spec.Ports[0].NodePort == 30001 {
		t.Errorf("a later version has %v %v", later.Spec.ClusterIPs, later.Spec.Ports)
	}
}
