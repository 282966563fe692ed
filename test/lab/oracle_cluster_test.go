package labtest

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"myelin/test/lab/oracle"
	"myelin/test/packet"
	"myelin/test/policy/random"
	"myelin/test/policy/reference"
	"myelin/test/policy/scenario"
)

// fuzzPods is how many pods a fuzzer's cluster has.
const fuzzPods = 8

// fuzzLabels are labels as those that policies made up speak of.
func fuzzLabels(r *rand.Rand) string {
	var labels []string
	for _, key := range []string{"app", "tier", "env"} {
		if r.IntN(3) > 0 {
			labels = append(labels, key+": "+string("abc"[r.IntN(3)]))
		}
	}
	return strings.Join(labels, ", ")
}

// fuzzYAML is a cluster of two nodes and four namespaces, with labels made up.
func fuzzYAML(s *setup, r *rand.Rand) string {
	var yaml []string
	for i := 1; i <= 2; i++ {
		name := fmt.Sprintf("metadata: {name: node%d", i)
		yaml = append(yaml, strings.Replace(s.nodeYAML(i), name, name+", labels: {"+fuzzLabels(r)+"}", 1))
	}
	for i := range 4 {
		yaml = append(yaml, fmt.Sprintf("apiVersion: v1\nkind: Namespace\n"+
			"metadata: {name: s%d, labels: {%s}}\n", i, fuzzLabels(r)))
	}
	for i := range fuzzPods {
		space, labels := fmt.Sprintf("s%d", r.IntN(4)), fuzzLabels(r)
		yaml = append(yaml, fmt.Sprintf("apiVersion: v1\nkind: Pod\n"+
			"metadata: {name: p%d, namespace: %s, labels: {%s}}\n"+
			"spec: {nodeName: node%d, serviceAccountName: %q, containers: [{name: c, image: none, ports: [%s]}]}\n",
			i, space, labels, 1+i%2, []string{"", "a", "b"}[i%3], fuzzContainerPorts(space+labels)))
	}
	return strings.Join(yaml, "---\n")
}

// fuzzContainerPorts gives ports names; pods of the same labels have the same.
func fuzzContainerPorts(of string) string {
	h := fnv.New64()
	h.Write([]byte(of))
	r := rand.New(rand.NewPCG(h.Sum64(), 1))
	var ports []string
	for _, name := range []string{"http", "dns", "admin"} {
		port := []int{53, 80, 443, 8080, 30000}[r.IntN(5)]
		proto := []string{"TCP", "UDP"}[r.IntN(2)]
		if r.IntN(10) < 7 {
			ports = append(ports, fmt.Sprintf("{name: %s, containerPort: %d, protocol: %s}", name, port, proto))
		}
	}
	return strings.Join(ports, ", ")
}

// upFuzz brings a cluster up, with a socket of each kind in each place.
func upFuzz(t *testing.T, s setup, seed uint64) *fuzz {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	s.nodes, s.pods = 2, []string{}
	s.fill()
	yaml := fuzzYAML(&s, r)
	s.yaml = yaml + barriers()
	s.outside = []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:1::1")}
	z := &fuzz{arena: &arena{policed: &policed{cluster: up(t, s)}}, r: r, seed: seed, conns: map[int]bool{}}
	z.base = &reference.World{}
	check(t, scenario.Add(z.base, []byte(yaml)))
	z.model = &oracle.Model{Tunnel: s.mode.tunnel != 0, Gateways: map[string][]netip.Addr{}}
	z.generator = &oracle.Generator{R: r, Model: z.model, MACs: map[string]net.HardwareAddr{}}
	z.names = packet.Names{}
	z.findAll(t)
	z.model.Enforce(z.base)
	return z
}

// findAll looks up the addresses of pods and nodes, and opens sockets there.
func (z *fuzz) findAll(t *testing.T) {
	t.Helper()
	for i := 1; i <= 2; i++ {
		name := fmt.Sprintf("node%d", i)
		z.add(t, z.end(name), &oracle.Place{Name: name, Node: name})
		z.model.Gateways[name] = []netip.Addr{gateway(i, 4), gateway(i, 6)}
	}
	z.endWorldsServer()
	world := z.end("world")
	world.addrs = append(world.addrs, worldAddr(4), worldAddr(6))
	z.add(t, world, &oracle.Place{Name: "world"})
	for _, pod := range z.base.Pods {
		e := z.end(pod.Namespace + "/" + pod.Name)
		z.add(t, e, &oracle.Place{Name: pod.Name, Node: pod.Spec.NodeName, Pod: true})
		pod.Status.Phase = corev1.PodPending
		for _, a := range e.addrs {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
		}
		pod.Status.PodIP = e.addrs[0].String()
		z.generator.MACs["gw-"+pod.Name] = z.linkMAC(pod.Spec.NodeName, e)
	}
	for _, p := range z.model.Places {
		if p.Pod || p.Node != "node1" {
			z.generator.Senders = append(z.generator.Senders, p)
		}
	}
}

func (z *fuzz) add(t *testing.T, e end, p *oracle.Place) {
	t.Helper()
	p.Addrs = slices.Clone(e.addrs)
	if !p.Pod && p.Node != "" {
		p.Addrs = append(p.Addrs, z.linkLocal(e))
	}
	z.model.Places = append(z.model.Places, p)
	z.generator.MACs[p.Name] = z.mac(e)
	z.names[p.Name] = packet.Name{MAC: z.mac(e), IP4: e.addr(4), IP6: e.addr(6)}
	z.posts = append(z.posts, newPost(t, e, p))
	z.ends = append(z.ends, e)
}

// policies makes up policies, and returns them as documents and as the world that the reference knows.
func (z *fuzz) policies(t *testing.T) (documents []string, w *reference.World) {
	t.Helper()
	made := random.World(z.r, 6)
	text, err := random.Text(made)
	check(t, err)
	for document := range strings.SplitSeq(text, "---\n") {
		kind := regexp.MustCompile(`(?m)^kind: (\w+)$`).FindStringSubmatch(document)
		usable := kind != nil && (strings.HasSuffix(kind[1], "Policy") || kind[1] == "CiliumCIDRGroup")
		services := regexp.MustCompile(`oServices|kube-apiserver`).MatchString(document)
		if !usable || services || ofNodes(document) && !z.hosts {
			continue
		}
		if document = z.translateTo(made, document); validExcepts(document) {
			documents = append(documents, document)
		}
	}
	if z.r.IntN(3) == 0 || len(documents) == 0 {
		types := []string{"Ingress", "Egress", "Ingress, Egress"}[z.r.IntN(3)]
		documents = append(documents, fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n"+
			"metadata: {name: one, namespace: s%d}\nspec: {podSelector: {}, policyTypes: [%s]}\n", z.r.IntN(4), types))
	}
	return documents, z.worldOf(t, documents)
}

// validExcepts is false if a document has an exception outside of its prefix, which translateTo may have moved there:
// such a policy is rejected.
func validExcepts(document string) bool {
	var within netip.Prefix
	listed := false
	for line := range strings.Lines(document) {
		key, value, _ := strings.Cut(strings.TrimLeft(strings.TrimSpace(line), "- "), ":")
		switch prefix, err := netip.ParsePrefix(strings.Trim(strings.TrimSpace(line), `- "`)); {
		case key == "cidr":
			within, _ = netip.ParsePrefix(strings.Trim(value, ` "`))
			listed = false
		case key == "except":
			listed = true
		case err != nil:
			listed = false
		case listed && within.IsValid() && !within.Contains(prefix.Addr()):
			return false
		}
	}
	return true
}

// worldOf is the cluster with these policies, as the reference knows it.
func (z *fuzz) worldOf(t *testing.T, documents []string) *reference.World {
	t.Helper()
	world := *z.base
	w := &world
	check(t, scenario.Add(w, []byte(strings.Join(documents, "\n---\n"))))
	w.Cluster = "a"
	return w
}

// translateTo puts the lab's addresses of pods in the place of those made up.
func (z *fuzz) translateTo(made *reference.World, document string) string {
	lab := map[string]string{}
	for i, pod := range made.Pods {
		to := z.base.Pods[i%len(z.base.Pods)]
		for _, ip := range pod.Status.PodIPs {
			for _, own := range to.Status.PodIPs {
				if strings.Contains(ip.IP, ":") == strings.Contains(own.IP, ":") && !pod.Spec.HostNetwork {
					lab[ip.IP] = own.IP
				}
			}
		}
	}
	for _, a := range slices.Sorted(maps.Keys(lab)) {
		document = regexp.MustCompile(regexp.QuoteMeta(a)+`(/32|/128|")`).ReplaceAllString(document, lab[a]+"$1")
	}
	return document
}

// flush takes the datapath's memory of flows and fragments away.
func (z *fuzz) flush() {
	for _, node := range []string{"node1", "node2"} {
		for _, name := range []string{"flows", "fragments", "nat_entries", "translations"} {
			if _, err := os.Stat(z.pin(node, name)); err != nil {
				continue // translations were the NAT entries of older programs
			}
			m := z.pinnedMap(node, name)
			key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
			var keys [][]byte
			for each := m.Iterate(); each.Next(&key, &value); {
				keys = append(keys, slices.Clone(key))
			}
			for _, k := range keys {
				_ = m.Delete(k) // it may have gone
			}
			m.Close()
		}
	}
	time.Sleep(100 * time.Millisecond) // as long as a CPU uses its flow cache
}
