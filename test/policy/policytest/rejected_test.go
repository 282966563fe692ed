package policytest_test

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/policy"
	"myelin/policy/explain"
	"myelin/policy/parse"
	"myelin/test/policy/policytest"
	"myelin/test/policy/reference"
	"myelin/test/policy/scenario"
)

const rejectedDir = "testdata/rejected"

// rejection is a mutation that a place in the code rejects.
type rejection struct {
	kind, site string
	policytest.Mutation
}

// rejections has one for each place in package parse that rejects something, as
// policy/parse/testdata/rejections.txt lists them; one that several places reject is
// there once.
func rejections(t *testing.T) (out []rejection) {
	t.Helper()
	missing := policytest.Sites(t, "../../../policy/parse")
	for _, kind := range policytest.Kinds() {
		for _, m := range policytest.Mutations(t, rejectedDir, kind) {
			found := found(kind, m.Raw)
			var of []string
			missing = slices.DeleteFunc(missing, func(s policytest.Site) bool {
				is := slices.ContainsFunc(found, func(text string) bool { return s.Noted(kind, text) })
				if is {
					of = append(of, s.String())
				}
				return is
			})
			if len(of) > 0 {
				out = append(out, rejection{kind, strings.Join(of, "; "), m})
			}
		}
	}
	if len(missing) > 0 {
		t.Errorf("nothing is rejected by %v", missing)
	}
	return out
}

// found is all that is wrong with an object, and what is not enforced of it.
func found(kind, raw string) (out []string) {
	if kind == parse.GroupKind {
		_, faults := parse.ReadGroup([]byte(raw), parse.Origin{})
		for _, f := range faults {
			out = append(out, f.Error())
		}
		return out
	}
	for of, read := range parse.Readers() {
		if strings.HasSuffix(of, "/"+kind) {
			o, faults := read([]byte(raw), parse.Origin{})
			for _, f := range faults {
				out = append(out, f.Error())
			}
			if o != nil {
				out = append(out, o.Unenforced()...)
			}
		}
	}
	return out
}

// rejectionTest is a cluster that rejections are tried in.
type rejectionTest struct {
	testing.TB
	kind  string
	world *reference.World
	dir   string // of manifests
	run   string // what outlives an agent
	want  []bool // what the good object lets pass
}

func newRejectionTest(t testing.TB, kind string) *rejectionTest {
	r := &rejectionTest{TB: t, kind: kind, world: &reference.World{Node: "node1", Cluster: "default"}, dir: t.TempDir(),
		run: t.TempDir()}
	text, err := scenario.Cluster()
	r.ok(err)
	for name, data := range map[string][]byte{"cluster.yaml": text, "others.yaml": r.others()} {
		r.ok(os.WriteFile(filepath.Join(r.dir, name), data, 0o600), scenario.Add(r.world, data))
	}
	r.ok(scenario.Add(r.world, policytest.Good(t, rejectedDir, kind)))
	for _, p := range r.probes() {
		r.want = append(r.want, r.world.Path(p).Allowed)
	}
	return r
}

// open starts an agent.
func (r *rejectionTest) open() *policytest.Node {
	r.Helper()
	return policytest.Open(r, r.dir, r.world.Node, r.run, policy.Config{Host: true})
}

// others are objects that the good one means something with.
func (r *rejectionTest) others() []byte {
	var all []string
	switch r.kind {
	case parse.GroupKind:
		for _, kind := range []string{"CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy"} {
			all = append(all, string(policytest.Good(r, rejectedDir, kind)))
		}
	default:
		all = append(all, string(policytest.Good(r, rejectedDir, parse.GroupKind)))
	}
	return []byte(strings.Join(all, "\n---\n"))
}

func (r *rejectionTest) ok(errs ...error) {
	r.Helper()
	for _, err := range errs {
		if err != nil {
			r.Fatal(err)
		}
	}
}

// probes go between pods of the policies' namespace and all places.
func (r *rejectionTest) probes() (out []reference.Probe) {
	places := scenario.Places(r.world)
	for _, name := range slices.Sorted(maps.Keys(places)) {
		for _, peer := range places[name] {
			for _, own := range slices.Concat(places["v/a"], places["v/b"]) {
				if own.Is4() != peer.Is4() || own == peer {
					continue
				}
				for _, p := range []reference.Probe{{Proto: policy.ProtoTCP, Port: 80},
					{Proto: policy.ProtoTCP, Port: 443},
					{Proto: policy.ProtoUDP, Port: 53}} {
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

// write makes an object what its file holds; empty: there is no file.
func (r *rejectionTest) write(object string) {
	r.Helper()
	path := filepath.Join(r.dir, "subject.yaml")
	if object == "" {
		r.ok(os.Remove(path))
		return
	}
	r.ok(os.WriteFile(filepath.Join(r.dir, ".new"), []byte(object), 0o600),
		os.Rename(filepath.Join(r.dir, ".new"), path))
}

// state says of the objects of the file which version of each is in force.
func (r *rejectionTest) state(n *policytest.Node) string {
	var out []string
	txn := n.DB.ReadTxn()
	for o := range n.Policies.Policies.All(txn) {
		if o.Source == "manifests:subject.yaml" {
			out = append(out, fmt.Sprintf("%s %q %q %d", o.Ref, o.InForce, o.Problem, len(o.Unenforced())))
		}
	}
	for g := range n.Policies.Groups.All(txn) {
		if g.Source == "manifests:subject.yaml" {
			out = append(out, fmt.Sprintf("%s %q %q", g.Name, g.InForce, g.Problem))
		}
	}
	return strings.Join(out, "; ")
}

// verdicts are what a node says of all probes.
func (r *rejectionTest) verdicts(n *policytest.Node) (out []bool) {
	r.Helper()
	for deadline := time.Now().Add(20 * time.Second); n.Engine.RealisedRevision() < n.Policies.Policies.Revision(
		n.DB.ReadTxn()); {
		if time.Now().After(deadline) {
			r.Fatal("policies are not realised")
		}
		time.Sleep(time.Millisecond)
	}
	node := func(a netip.Addr) string {
		for _, p := range r.world.Pods {
			for _, ip := range p.Status.PodIPs {
				if ip.IP == a.String() {
					return p.Spec.NodeName
				}
			}
		}
		for _, o := range r.world.Nodes {
			for _, address := range o.Status.Addresses {
				if address.Address == a.String() {
					return o.Name
				}
			}
		}
		return ""
	}
	for _, p := range r.probes() {
		a, err := explain.New(n.Engine).Explain(explain.Flow{
			Src: explain.FlowEnd{Addr: p.Src}, Dst: explain.FlowEnd{Addr: p.Dst}, Proto: p.Proto, Port: p.Port,
			SrcNode: node(p.Src), DstNode: node(p.Dst),
		})
		r.ok(err)
		out = append(out, a.Egress.Allowed() && a.Ingress.Allowed())
	}
	return out
}

// settled are the verdicts of a node once they are those that are wanted, or after ten seconds: identities of pods and
// namespaces reach the engine after the policies have.
func (r *rejectionTest) settled(n *policytest.Node, want []bool) (got []bool) {
	r.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if got = r.verdicts(n); slices.Equal(got, want) || time.Now().After(deadline) {
			return got
		}
	}
}

// stable are the verdicts of a node once they have been the same for 100 ms, where it is not known what they come to.
func (r *rejectionTest) stable(n *policytest.Node) []bool {
	r.Helper()
	last, since := r.verdicts(n), time.Now()
	for time.Since(since) < 100*time.Millisecond {
		time.Sleep(10 * time.Millisecond)
		if got := r.verdicts(n); !slices.Equal(got, last) {
			last, since = got, time.Now()
		}
	}
	return last
}

// within reports what passes that the good object does not let pass.
func (r *rejectionTest) within(how string, got []bool) {
	r.Helper()
	for i, p := range r.probes() {
		if got[i] && !r.want[i] {
			r.Errorf("%s: %+v passes", how, p)
		}
	}
}

// become waits until the file's objects are in a state that is not the one before.
func (r *rejectionTest) become(n *policytest.Node, before string) string {
	r.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if now := r.state(n); now != before {
			return now
		}
	}
	r.Fatalf("nothing becomes of it: %s", before)
	return ""
}

// again is what a new agent says, which must be the same.
func (r *rejectionTest) again(how, state string, before []bool) {
	r.Helper()
	n := r.open()
	if now := r.state(n); now != state {
		r.Errorf("%s, after a restart: %s, before: %s", how, now, state)
	}
	if got := r.settled(n, before); !slices.Equal(got, before) {
		r.Errorf("%s: a restart changes what passes", how)
	}
	n.Stop()
}

// Each rejection that the parsers know: the object applied new, as an update of a
// good one, and present at a restart after both. Nothing passes that the good one
// does not let pass; where the last good version is in force, exactly that passes.
func TestRejectedThreeWays(t *testing.T) {
	all := rejections(t)
	if len(all) < 60 {
		t.Fatalf("only %d rejections", len(all))
	}
	for i, x := range all {
		if testing.Short() && i%8 != 0 {
			continue
		}
		t.Run(fmt.Sprintf("%s %.80s", x.kind, x.Name), func(t *testing.T) {
			t.Parallel()
			fresh := newRejectionTest(t, x.kind)
			fresh.write(x.Raw)
			n := fresh.open()
			got, state := fresh.stable(n), fresh.state(n)
			n.Stop()
			fresh.within("new", got)
			if state == "" {
				t.Error("it is not in the tables")
			}
			fresh.again("new", state, got)

			r := newRejectionTest(t, x.kind)
			good := string(policytest.Good(t, rejectedDir, x.kind))
			r.write(good)
			n = r.open()
			before := r.state(n)
			if got := r.settled(n, r.want); !slices.Equal(got, r.want) {
				t.Error("the good object does not mean what the reference says")
			}
			r.write(x.Raw)
			state = r.become(n, before)
			got = r.stable(n)
			n.Stop()
			r.within("as an update", got)
			if strings.Contains(state, `"last good"`) && !slices.Equal(got, r.want) {
				t.Error("the last good version is not in force")
			}
			r.again("as an update", state, got)
			if t.Failed() {
				t.Logf("rejected by %s: %s", x.site, state)
			}
		})
	}
}

// A file that is emptied, or holds what is no YAML, leaves its policy in force, also at
// a restart and where that happens while there is no agent; a file that is deleted
// takes it away.
func TestEmptiedManifest(t *testing.T) {
	for text, reason := range map[string]string{"": "has no document", "# later\n": "has no document",
		"a: [": "document 1", "---\nkind: Netw": "document 1"} {
		t.Run(reason, func(t *testing.T) { testEmptied(t, text, reason) })
	}
}

func testEmptied(t *testing.T, text, reason string) {
	r := newRejectionTest(t, "NetworkPolicy")
	good, path := policytest.Good(t, rejectedDir, "NetworkPolicy"), filepath.Join(r.dir, "subject.yaml")
	r.write(string(good))
	n := r.open()
	before := r.state(n)
	r.ok(os.WriteFile(path, []byte(text), 0o600))
	state := r.become(n, before)
	got := r.verdicts(n)
	if !strings.Contains(state, `"last good"`) || !strings.Contains(state, reason) || !slices.Equal(got, r.want) {
		t.Errorf("emptied, it is %s", state)
	}
	n.Stop()
	r.again("emptied", state, got)
	r.write(string(good))
	r.again("mended", before, r.want)
	r.ok(os.WriteFile(path, []byte(text), 0o600))
	r.again("emptied without an agent", state, r.want)
	n = r.open()
	r.write("")
	if now := r.become(n, state); now != "" {
		t.Errorf("deleted, it is %s", now)
	}
}
