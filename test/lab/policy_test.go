package labtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"myelin/policy/scenario"
)

// policed is a cluster with a server for each question in each place.
type policed struct {
	*cluster
	probing
	steps int
}

// policyModes are those in which packets meet policies at other hooks.
func policyModes() []mode {
	return []mode{modeNamed("native"), modeNamed("vxlan"), modeNamed("legacy")}
}

// TestPolicyScenarios applies each scenario's policies, takes one away, then all, and sends all probes of the scenario
// each time, with TCP, UDP, ICMP and SCTP, over IPv4 and IPv6: what the scenario says, or where a policy is missing the
// reference, must come through, and nothing else.
//
//	┌─ node1 ────────────┐  ┌─ node2 ────────────┐
//	│ x/a x/c  v/a v/c   │  │ x/b  v/b  z/b      │
//	│ z/a z/c            │  │ x/host is the node │
//	└─────────┬──────────┘  └─────────┬──────────┘
//	══════════╧═══ world/one, /two ═══╧═══════════     each can also begin: the world knows the way to pods
func TestPolicyScenarios(t *testing.T) {
	all, err := scenario.All()
	check(t, err)
	for _, m := range policyModes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			p := upPoliced(t, setup{mode: m}, all)
			for i, s := range all {
				t.Run(s.Name, func(t *testing.T) { p.scene(t, s, i) })
			}
		})
	}
}

// upPoliced brings the scenarios' cluster up, with servers for what these scenarios ask.
func upPoliced(t *testing.T, s setup, all []scenario.Scenario) *policed {
	t.Helper()
	text, err := scenario.Cluster()
	check(t, err)
	s.yaml, s.outside = withoutServers(string(text))+barriers(), slices.Concat(scenario.Outside()["world/one"],
		scenario.Outside()["world/two"])
	p := &policed{cluster: up(t, s), probing: probing{places: map[string]end{}, served: map[servedPort]bool{}}}
	p.findPlaces()
	for _, s := range all {
		for _, probe := range s.Probes {
			p.served[servedPort{probe.To, probe.Dst.Is4(), probe.Proto, probe.Port}] = true
		}
	}
	for _, node := range p.Nodes() {
		for i, prefix := range node.PodCIDRs() {
			p.command("ip", "-n", p.World().NetnsName(), "route", "add", prefix.String(), "via",
				node.Addrs()[i].String())
		}
	}
	p.endWorldsServer()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		p.servers.Wait()
	})
	check(t, p.serve(ctx))
	return p
}

// endWorldsServer ends the lab's own server outside of the cluster, whose ports the test wants.
func (p *policed) endWorldsServer() {
	eventually(p.t, "the world's server ends", 5*time.Second, func() error {
		list, err := os.ReadFile(filepath.Join(p.World().Cgroup(), "cgroup.procs"))
		for _, field := range strings.Fields(string(list)) {
			pid, err2 := strconv.Atoi(field)
			err = errors.Join(err, err2, unix.Kill(pid, unix.SIGKILL), fmt.Errorf("process %d was there", pid))
		}
		return err
	})
}

// withoutServers is the cluster with pods that have a network and no process: the test's own servers answer in their
// place. What the pods' addresses are says the lab.
func withoutServers(yaml string) string {
	yaml = regexp.MustCompile(`(?m)^ +command: .*\n`).ReplaceAllString(yaml, "")
	yaml = regexp.MustCompile(`, command: \[.*\]`).ReplaceAllString(yaml, "")
	return regexp.MustCompile(`(?m)^status:\n  phase: .*\n  podIP: .*\n  podIPs: .*\n`).ReplaceAllString(yaml, "")
}

// barriers are a pod on each node that no scenario speaks of.
func barriers() string {
	yaml := "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: barrier}\n"
	for i := 1; i <= 2; i++ {
		yaml += "---\n" + strings.Replace(podYAML(fmt.Sprintf("gate%d", i), i), "metadata: {",
			"metadata: {namespace: barrier, ", 1)
	}
	return yaml
}

// findPlaces looks up the lab's place for each of the scenarios'.
func (p *policed) findPlaces() {
	for name, addrs := range scenario.Outside() {
		world := p.end("world")
		world.addrs = addrs
		p.places[name] = world
	}
	pods, err := p.Pods()
	check(p.t, err)
	for _, pod := range pods {
		if !pod.State().HostNetwork {
			p.places[pod.Name()] = p.end(pod.Name())
		}
	}
	for _, node := range p.Nodes() {
		p.places["node/"+node.Name()] = p.end(node.Name())
	}
}

// scene plays one scenario.
func (p *policed) scene(t *testing.T, s scenario.Scenario, i int) {
	begin := time.Now()
	documents := strings.Split(strings.TrimPrefix(string(s.Objects), "---\n"), "\n---\n")
	gone := pickPolicy(documents, i)
	file := p.enforce(t, p.translate(documents)...)
	probes := s.Probes
	if slices.ContainsFunc(documents, ofNodes) {
		probes = expected(t, s, documents)
	}
	p.sendAll(t, "as written", probes)
	if gone >= 0 && len(documents) > 1 {
		p.remove(t, p.translate(documents[gone:gone+1])...)
		p.sendAll(t, fmt.Sprintf("without document %d", gone+1), expected(t, s,
			slices.Delete(slices.Clone(documents), gone, gone+1)))
	}
	check(t, p.Delete(t.Context(), file))
	p.pass(t)
	p.sendAll(t, "without policies", expected(t, s, nil))
	t.Logf("%v", time.Since(begin))
}

// pickPolicy chooses one of the documents that are policies, another one for each n; -1 if there is none.
func pickPolicy(documents []string, n int) int {
	var policies []int
	for i, d := range documents {
		if strings.Contains(d, "Policy\n") {
			policies = append(policies, i)
		}
	}
	if len(policies) == 0 {
		return -1
	}
	return policies[n%len(policies)]
}

// ofNodes finds policies for nodes themselves. They hold nothing up: that takes hostFirewall.enabled.
func ofNodes(document string) bool { return strings.Contains(document, "nodeSelector:") }

// expected are the scenario's probes with what the reference says of them where these documents are all that is
// enforced.
func expected(t *testing.T, s scenario.Scenario, documents []string) []scenario.Probe {
	t.Helper()
	s.Objects = []byte(strings.Join(slices.DeleteFunc(slices.Clone(documents), ofNodes), "\n---\n"))
	w, err := s.World()
	check(t, err)
	probes := slices.Clone(s.Probes)
	for i := range probes {
		probes[i].Allow = w.Path(probes[i].Probe).Allowed
	}
	return probes
}

// translate puts the lab's addresses of pods in the place of the scenarios'.
func (p *policed) translate(documents []string) []string {
	w, err := (scenario.Scenario{}).World()
	check(p.t, err)
	var pairs []string
	for name, addrs := range scenario.Places(w) {
		for _, a := range addrs {
			pairs = append(pairs, a.String(), p.places[name].addr(family(a)).String())
		}
	}
	all := slices.Clone(documents)
	for i := range all {
		all[i] = regexp.MustCompile(`[0-9a-f.:]+`).ReplaceAllStringFunc(all[i], func(word string) string {
			if k := slices.Index(pairs, word); k >= 0 && k%2 == 0 {
				return pairs[k+1]
			}
			return word
		})
	}
	return all
}

// enforce adds objects, and returns when the policies among them are in force on both nodes, and the objects' file.
func (p *policed) enforce(t *testing.T, documents ...string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "objects.yaml")
	check(t, os.WriteFile(file, []byte(strings.Join(documents, "\n---\n")), 0o644))
	check(t, p.Apply(t.Context(), file, false))
	p.pass(t)
	return file
}

// remove takes objects away, and returns when that is so on both nodes.
func (p *policed) remove(t *testing.T, documents ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gone.yaml")
	check(t, os.WriteFile(file, []byte(strings.Join(documents, "\n---\n")), 0o644))
	check(t, p.Delete(t.Context(), file))
	p.pass(t)
}

// pass waits until all that was written before is in force: a policy that is written last is in each node's table of
// the rules that are in the kernel.
func (p *policed) pass(t *testing.T) {
	t.Helper()
	p.steps++
	name := fmt.Sprintf("step-%d", p.steps)
	check(t, replaceFile(filepath.Join(p.Manifests(), "barrier.yaml"),
		"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: "+name+
			", namespace: barrier}\nspec: {podSelector: {}, ingress: [{}]}\n"))
	eventually(t, name+" is in force", 10*time.Second, func() error {
		var g errgroup.Group
		for _, n := range p.Nodes() {
			g.Go(func() error {
				out, err := p.cli(n.Name(), "table", "show", "policy-rules", "-f", "Rule~barrier/"+name+" ")
				if err == nil && !strings.Contains(out, "barrier/"+name+" ") {
					err = fmt.Errorf("%s does not have it: %s", n.Name(), out)
				}
				return err
			})
		}
		return g.Wait()
	})
}

// try sends probes and compares.
func (p *policed) sendAll(t *testing.T, when string, probes []scenario.Probe) {
	t.Helper()
	questions := make([]question, len(probes))
	for i, probe := range probes {
		questions[i] = p.question(probe)
	}
	for i, err := range p.verdicts(t.Context(), questions) {
		if err != nil {
			t.Errorf("%s: %s: %v", when, probes[i], err)
			p.explain(t, questions[i])
		}
	}
}

// question is a probe between the lab's places. A host outside has an address of two to send from.
func (p *policed) question(probe scenario.Probe) question {
	f := family(probe.Src)
	q := question{from: p.places[probe.From], to: p.places[probe.To], proto: probe.Proto, want: probe.Allow}
	q.dst = netip.AddrPortFrom(q.to.addr(f), probe.Port)
	if strings.HasPrefix(probe.From, "world/") {
		q.src = q.from.addr(f)
	}
	return q
}

// explain shows what the nodes know of a question that was answered wrongly.
func (p *policed) explain(t *testing.T, q question) {
	for _, n := range p.Nodes() {
		flows, err1 := p.cli(n.Name(), "flow", "list", "-f", "~"+q.dst.Addr().String())
		drops, err2 := p.cli(n.Name(), "drops")
		t.Logf("%s: %s\n%s%v", n.Name(), flows, drops, errors.Join(err1, err2))
	}
}
