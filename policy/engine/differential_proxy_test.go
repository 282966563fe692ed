package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"myelin/bpf"
	"myelin/l7/config"
	"myelin/policy"
	"myelin/policy/compile"
	"myelin/policy/engine"
	"myelin/test/policy/random"
	"myelin/test/policy/reference"
	"myelin/test/policy/scene"
)

// willing is a proxy that takes everything.
type willing struct{}

func (willing) Apply(context.Context, *config.Config) error { return nil }

func proxyOf(w *reference.World) engine.Proxy {
	if w.Proxy {
		return willing{}
	}
	return nil
}

// proxied compares what the maps and the proxy's rules say of worlds with the reference.
type proxied struct {
	*testing.T
	agent                     *agent
	world                     *reference.World
	config                    *config.Config
	cases, redirected, byName int
}

// TestDifferentialProxy compares worlds with toFQDNs and rules above ports: which flows are allowed, and which rules
// the proxy enforces on them.
func TestDifferentialProxy(t *testing.T) {
	k := engine.NewTestKernel(t)
	worlds := uint64(400)
	if testing.Short() {
		worlds = 60
	}
	p := &proxied{T: t}
	for seed := range worlds {
		r := rand.New(rand.NewPCG(seed, 7))
		p.world = random.Proxied(r, 5)
		p.agent = newAgent(t, p.world, k)
		p.config, _ = p.agent.engine.ProxyConfig()
		for _, probe := range random.Probes(r, p.world, 60) {
			for _, dir := range []policy.Direction{policy.Egress, policy.Ingress} {
				if bad := p.compare(engine.DatapathOf(k), dir, probe); bad != "" {
					text, _ := random.Text(p.world, probe)
					t.Fatalf("seed %d: %+v %s: %s\nnames %v\n%s", seed, probe, dir, bad, p.names(probe), text)
				}
			}
		}
	}
	t.Logf("%d verdicts, of which %d need the proxy, and %d are other ones by names", p.cases, p.redirected, p.byName)
	if p.cases < int(worlds)*30 || p.redirected < p.cases/80 || p.byName < p.cases/300 {
		t.Error("too few of them tell anything")
	}
}

func (p *proxied) names(probe reference.Probe) []string { return p.world.Names[probe.Src][probe.Dst] }

// selectors are the numbers that names have.
func (p *proxied) selectors(names []string) (out []uint32) {
	for _, s := range p.config.Selectors {
		has := func(n policy.NamePattern) bool { return slices.ContainsFunc(names, n.Matches) }
		if slices.ContainsFunc(s.Names, has) {
			out = append(out, s.Number)
		}
	}
	return out
}

// parts are the origins of the rules of a number, sorted, each once.
func (p *proxied) parts(number uint32) (out []string) {
	for _, r := range p.config.Rules {
		for _, part := range r.Parts {
			if r.Number == number {
				out = append(out, part.Origin.String())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// compare compares one end of a probe. For an address with names, which may be a pod's, the rules of the proxy are some
// of those that the reference has: those for the address itself and those of each selector are not put together.
func (p *proxied) compare(d *bpf.Datapath, dir policy.Direction, probe reference.Probe) (bad string) {
	own, peer, want := probe.Dst, probe.Src, p.world.Ingress(probe)
	var selectors []uint32
	if dir == policy.Egress {
		own, peer, want = probe.Src, probe.Dst, p.world.Egress(probe)
		selectors = p.selectors(p.names(probe))
	}
	slot, ours := p.agent.slots[own]
	if !ours {
		return ""
	}
	if _, known := scene.Ask(p.T, d, slot, dir, peer, probe.Proto, probe.Port); !known {
		return ""
	}
	got := scene.Lookup(p.T, d, slot, dir, peer, probe.Proto, probe.Port)
	if len(selectors) > 0 {
		plain := got
		got = scene.LookupNamed(p.T, d, slot, peer, selectors, probe.Proto, probe.Port)
		if plain != got {
			p.byName++
		}
	}
	p.cases++
	if got.Proxy {
		p.redirected++
	}
	parts := p.parts(got.Rule)
	var rules []string
	if want.Proxied != "" {
		rules = strings.Split(want.Proxied, ", ")
		slices.Sort(rules)
	}
	same := slices.Equal(parts, slices.Compact(rules))
	if selectors != nil { // a flow that nothing isolates may pass without the proxy
		same = len(parts) > 0 || rules == nil || got.Rule == 0
		for _, part := range parts {
			same = same && slices.Contains(rules, part)
		}
	}
	if allowed := got.Verdict == compile.Allowed; allowed != want.Allowed || !same || got.Proxy != (len(parts) > 0) {
		return fmt.Sprintf("got %+v, and the proxy enforces %q; want %+v", got, parts, want)
	}
	return ""
}
