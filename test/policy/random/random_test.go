package random

import (
	"math/rand/v2"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"myelin/test/policy/reference"
	"myelin/test/policy/scenario"
)

const (
	worlds = 2800
	size   = 8
	probes = 25
)

func seeded(seed int) *rand.Rand { return rand.New(rand.NewPCG(uint64(seed), 1)) }

// TestOdds: much is allowed and much denied, and everything that policies can say
// decides some probes.
func TestOdds(t *testing.T) {
	all, allowed, decided := map[string]int{}, map[string]int{}, map[string]int{}
	count := func(what string, v reference.Verdict) {
		all[what]++
		if v.Allowed {
			allowed[what]++
		}
	}
	place := regexp.MustCompile(`\[\d+\]`)
	for seed := range worlds {
		r := seeded(seed)
		w := World(r, size)
		for _, p := range Probes(r, w, probes) {
			v := w.Verdict(p)
			count("all", v)
			count(map[bool]string{true: "IPv4", false: "IPv6"}[p.Src.Is4()], v)
			if p.Proto == 1 || p.Proto == 58 {
				count("ICMP", v)
			}
			for direction, v := range map[string]reference.Verdict{"egress": w.Egress(p), "ingress": w.Ingress(p)} {
				if v.Why == "not on this node" {
					continue
				}
				count(direction, v)
				decided[v.Why]++
				words := strings.Fields(place.ReplaceAllString(v.Why, ""))
				for _, word := range words[1:] {
					decided[words[0]+" "+word]++
				}
			}
		}
	}
	for what, n := range all {
		share := 100 * allowed[what] / n
		t.Logf("%s: %d %% of %d are allowed", what, share, n)
		if share < 30 || share > 70 {
			t.Errorf("%s: %d %% of %d are allowed, want 30 to 70", what, share, n)
		}
	}
	for _, want := range constructs() {
		if decided[want] < 5 {
			t.Errorf("%q decides %d of %d probes", want, decided[want], worlds*probes)
		}
	}
}

// constructs are what Why can say.
func constructs() []string {
	all := []string{"no policy", "from the pod's own node"}
	add := func(kinds string, words ...string) {
		for _, kind := range strings.Split(kinds, ",") {
			for _, word := range words {
				all = append(all, kind+" "+word)
			}
		}
	}
	add("NetworkPolicy", "spec.ingress", "spec.egress", "from=all", "to=all", "from=podSelector", "to=podSelector",
		"from=namespaceSelector", "to=namespaceSelector", "from=namespaceSelector+podSelector",
		"to=namespaceSelector+podSelector",
		"from=ipBlock", "to=ipBlock", "ports=all", "ports=number", "ports=range", "ports=named", "ports=protocol",
		"allows")
	add("ClusterNetworkPolicy", "Admin", "Baseline", "spec.ingress", "spec.egress", "Accept", "Deny", "from=namespaces",
		"from=pods",
		"to=namespaces", "to=pods", "to=nodes", "to=networks", "protocols=all", "protocols=number", "protocols=range",
		"protocols=named")
	add("CiliumNetworkPolicy,CiliumClusterwideNetworkPolicy", "spec.ingress", "spec.egress", "spec.ingressDeny",
		"spec.egressDeny",
		"endpoints=selector", "nodes=selector", "cidr=prefix", "cidrSet=prefix", "cidrSet=group",
		"cidrSet=groupSelector",
		"services=name/pods", "services=name/endpoints", "services=serviceSelector/pods",
		"services=serviceSelector/endpoints",
		"peers=all", "ports=all", "icmps.fields=number", "icmps.fields=name", "allows")
	add("CiliumNetworkPolicy", "specs.ingress", "specs.egress")
	for _, entity := range []string{"all", "world", "world-ipv4", "world-ipv6", "cluster", "host", "remote-node",
		"kube-apiserver"} {
		add("CiliumNetworkPolicy,CiliumClusterwideNetworkPolicy", "entities="+entity)
	}
	for _, proto := range []string{"ANY", "TCP", "UDP", "SCTP"} {
		for _, port := range []string{"number/", "range/", "named/", "all/"} {
			add("CiliumNetworkPolicy,CiliumClusterwideNetworkPolicy", "toPorts.ports="+port+proto)
		}
	}
	return all
}

// TestWithout: what only narrows other things down makes a difference too, as one
// sees when it is taken away.
func TestWithout(t *testing.T) {
	changed := map[string]int{}
	for seed := range worlds / 4 {
		r := seeded(seed)
		w := World(r, size)
		list := Probes(r, w, probes)
		for name, change := range removals() {
			less := World(seeded(seed), size)
			change(less)
			if reflect.DeepEqual(less, w) {
				continue
			}
			for _, p := range list {
				if less.Verdict(p).Allowed != w.Verdict(p).Allowed {
					changed[name]++
				}
			}
		}
	}
	for name := range removals() {
		t.Logf("%s: %d", name, changed[name])
		if changed[name] < 2 {
			t.Errorf("without %s %d of %d probes differ", name, changed[name], worlds/4*probes)
		}
	}
}

// TestText reads what is printed, and makes the same world of the same seed.
func TestText(t *testing.T) {
	for seed := range 100 {
		r := seeded(seed)
		w := World(r, size)
		list := Probes(r, w, probes)
		text, err := Text(w, list[0])
		if err != nil {
			t.Fatal(err)
		}
		again := seeded(seed)
		if w2 := World(again, size); !reflect.DeepEqual(w, w2) || !reflect.DeepEqual(list, Probes(again, w2, probes)) {
			t.Fatalf("seed %d makes two worlds", seed)
		}
		back := &reference.World{Node: w.Node, Cluster: w.Cluster, CIDRNodes: w.CIDRNodes}
		if err := scenario.Add(back, []byte(text)); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		for _, p := range list {
			if got, want := back.Verdict(p), w.Verdict(p); got != want {
				t.Fatalf("seed %d: %v: read back %v, was %v\n%s", seed, p, got, want, text)
			}
		}
		if !strings.Contains(text, "# probe: "+list[0].Src.String()+" -> "+list[0].Dst.String()) {
			t.Fatalf("seed %d: no probe in\n%s", seed, text)
		}
	}
}

// BenchmarkWorld is a world and 25 probes, and what the reference says of them.
func BenchmarkWorld(b *testing.B) {
	for seed := range b.N {
		r := seeded(seed)
		w := World(r, size)
		for _, p := range Probes(r, w, probes) {
			w.Verdict(p)
		}
	}
}
