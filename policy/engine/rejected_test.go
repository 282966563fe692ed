package engine_test

import (
	"fmt"
	stdmaps "maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"myelin/endpoint"
	"myelin/policy"
	"myelin/policy/engine"
	"myelin/policy/maps"
	"myelin/policy/parse"
	"myelin/test/policy/policytest"
	"myelin/test/policy/reference"
	"myelin/test/policy/scenario"
	"myelin/test/policy/scene"
)

// rejections are what is tried of one kind.
type rejections struct {
	*testing.T
	world  *reference.World
	agent  *agent
	kernel *maps.Writer
	kind   string
	want   []bool // what the good object lets pass, by probe and end
	probes []reference.Probe
	tried  int
}

// newRejections makes an agent of a cluster with a good object. With isolated,
// each pod has a policy of its own that allows nothing.
func newRejections(t *testing.T, k *maps.Writer, good []byte, kind string, isolated bool) *rejections {
	t.Helper()
	text, err := scenario.Cluster()
	w := &reference.World{Node: "node1", Cluster: "default"}
	add := func(text []byte) {
		if err := scenario.Add(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if add(text); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"CiliumCIDRGroup", "CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy"} {
		if file != kind && (file == "CiliumCIDRGroup" || kind == "CiliumCIDRGroup") {
			add(policytest.Good(t, rejectedDir, file))
		}
	}
	for _, ns := range w.Namespaces {
		if isolated {
			add(fmt.Appendf(nil,
				"kind: NetworkPolicy\nmetadata: {name: none, namespace: %s}\nspec: {podSelector: {}, policyTypes: "+
					"[Ingress, Egress]}\n", ns.Name))
		}
	}
	for _, pod := range w.Pods {
		if pod.Namespace == "v" && pod.Name == "a" {
			w.Node = pod.Spec.NodeName
		}
	}
	add(good)
	r := &rejections{T: t, world: w, kernel: k, kind: kind}
	r.agent = newAgent(t, w, k)
	r.probes = r.allProbes()
	r.each(func(p reference.Probe, dir policy.Direction, _ uint16, _ netip.Addr) {
		allowed := w.Ingress(p).Allowed
		if dir == policy.Egress {
			allowed = w.Egress(p).Allowed
		}
		r.want = append(r.want, allowed)
	})
	return r
}

// rejectedDir has the good objects.
const rejectedDir = "../../test/policy/policytest/testdata/rejected"

// allProbes go between all places and the node's endpoints, of one family each.
func (r *rejections) allProbes() (out []reference.Probe) {
	places := scenario.Places(r.world)
	all := slices.Concat(slices.Collect(stdmaps.Values(places))...)
	own := slices.Concat(places["v/a"], places["v/c"], places["x/a"], places["node/"+r.world.Node])
	for _, peer := range all {
		for _, own := range own {
			if _, here := r.agent.slots[own]; here && own.Is4() == peer.Is4() && own != peer {
				echo := reference.Probe{Proto: policy.ProtoICMP, Port: 8}
				if own.Is6() {
					echo = reference.Probe{Proto: policy.ProtoICMPv6, Port: 128}
				}
				for _, p := range []reference.Probe{
					{Proto: policy.ProtoTCP, Port: 80}, {Proto: policy.ProtoTCP, Port: 81},
					{Proto: policy.ProtoTCP, Port: 443},
					{Proto: policy.ProtoTCP, Port: 8085},
					{Proto: policy.ProtoUDP, Port: 53}, {Proto: policy.ProtoSCTP, Port: 80}, echo,
				} {
					p.Src, p.Dst = own, peer
					out = append(out, p)
					p.Src, p.Dst = peer, own
					out = append(out, p)
				}
			}
		}
	}
	return out
}

// each calls f for each end of a probe that is on the node.
func (r *rejections) each(f func(p reference.Probe, dir policy.Direction, slot uint16, peer netip.Addr)) {
	for _, p := range r.probes {
		if slot, ok := r.agent.slots[p.Src]; ok {
			f(p, policy.Egress, slot, p.Dst)
		}
		if slot, ok := r.agent.slots[p.Dst]; ok {
			f(p, policy.Ingress, slot, p.Src)
		}
	}
}

// read reads an object, and reports whether something of it is not in force as it
// is written.
func (r *rejections) read(raw string) (o *policy.Object, g *policy.Group, rejected bool) {
	if r.kind == parse.GroupKind {
		g, faults := parse.ReadGroup([]byte(raw), parse.Origin{})
		return nil, g, len(faults) > 0
	}
	for kind, read := range parse.Readers() {
		if strings.HasSuffix(kind, "/"+r.kind) {
			o, faults := read([]byte(raw), parse.Origin{})
			return o, nil, len(faults) > 0 || o != nil && len(o.Unenforced()) > 0
		}
	}
	r.Fatalf("no kind %s", r.kind)
	return nil, nil, false
}

// try applies a mutation, and compares what it lets pass with what the good object
// does.
func (r *rejections) try(m policytest.Mutation) {
	r.Helper()
	o, g, rejected := r.read(m.Raw)
	if !rejected {
		return // it means something else
	}
	r.tried++
	txn := r.agent.db.WriteTxn(r.agent.policies.Policies, r.agent.policies.Groups)
	switch {
	case o != nil:
		put(r.agent, txn, r.agent.policies.Policies, o, nil)
	case g != nil:
		put(r.agent, txn, r.agent.policies.Groups, g, nil)
	default:
		txn.Abort()
		r.Errorf("%s: nothing is made of it", m.Name)
		return
	}
	txn.Commit()
	if err := r.agent.engine.Settle(); err != nil {
		r.Fatal(err)
	}
	i := 0
	r.each(func(p reference.Probe, dir policy.Direction, slot uint16, peer netip.Addr) {
		want := r.want[i]
		i++
		allows, known := scene.Ask(r.agent.TB, engine.DatapathOf(r.kernel), slot, dir, peer, p.Proto, p.Port)
		if allows && known && !want && !r.unselected(o, slot) {
			r.Errorf("%s: %s of %+v is allowed", m.Name, dir, p)
		}
	})
}

// unselected reports whether an endpoint is the node, and its selector is one of which
// nothing is understood: that isolates no node (ADR 13).
func (r *rejections) unselected(o *policy.Object, slot uint16) bool {
	return r.kind == "CiliumClusterwideNetworkPolicy" && slot == endpoint.HostID && !slices.ContainsFunc(o.Specs,
		func(s policy.Spec) bool { return s.Nodes })
}

// TestRejected changes good objects of each kind in one place, in all ways, and
// applies those that are refused, or that are not enforced in part, as new ones.
// Nothing passes that the good object does not let pass.
func TestRejected(t *testing.T) {
	k := engine.NewTestKernel(t)
	for _, kind := range policytest.Kinds() {
		for _, isolated := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/isolated=%t", kind, isolated), func(t *testing.T) {
				good := policytest.Good(t, rejectedDir, kind)
				r := newRejections(t, k, good, kind, isolated)
				all := policytest.Mutations(t, rejectedDir, kind)
				for i, m := range all {
					if !testing.Short() || i%8 == 0 {
						r.try(m)
					}
				}
				passed := 0
				for _, p := range r.want {
					if p {
						passed++
					}
				}
				t.Logf("%d rejections of %d mutations, %d of %d probes pass by the good one", r.tried, len(all), passed,
					len(r.want))
				if r.tried < 3 || passed < len(r.want)/50 || passed == len(r.want) {
					t.Error("too few are rejected, or the good object lets all or nothing pass")
				}
			})
		}
	}
}
