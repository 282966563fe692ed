package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/endpoint"
	"myelin/policy"
	"myelin/policy/compile"
	"myelin/test/policy/scene"
)

// add does what a CNI ADD does, and returns how long the policies took.
func (n *node) add(slot uint16, app string) time.Duration {
	n.Helper()
	pod := n.pod(app, fmt.Sprintf("10.0.%d.%d", slot>>8, slot&0xff))
	pod.Name = fmt.Sprint(app, slot)
	begin := time.Now()
	insert(n, n.cluster.Pods, pod)
	insert(n, n.endpoints, &endpoint.Endpoint{ID: slot, ContainerID: pod.Name, IfName: "eth0", Namespace: "x",
		Pod: pod.Name, IPv4: pod.Addresses[0], State: endpoint.StateReady})
	if err := n.engine.WaitPod(n.Context(), slot); err != nil {
		n.Fatal(err)
	}
	return time.Since(begin)
}

// denying is a policy that denies prefixes to the pods of an app, and isolates none.
func denying(app string, list []netip.Prefix) *policy.Object {
	s := scene.ListSpec(list)
	s.Subject = scene.OneOf("app", app)
	return &policy.Object{Ref: s.Ref, Specs: []policy.Spec{s}}
}

func denies(t testing.TB, d *bpf.Datapath, slot uint16, p netip.Prefix) bool {
	return scene.Lookup(t, d, slot, policy.Egress, p.Addr(), policy.ProtoTCP, 80).Verdict == compile.Denied
}

// A list of a million loads beside everything else: an ADD of a pod that it
// isn't for doesn't wait for it, and one that it is for is never without it.
func TestListLoads(t *testing.T) {
	k := newWriter(t, map[string]uint32{"peers": 1 << 21, "peer_prefixes": 1 << 20, "peer_classes": 1 << 16,
		"verdicts": 1 << 16, "policies": 65536})
	k.Now = time.Now
	n := newNode(t, k, t.TempDir())
	n.fill()
	insert(n, n.cluster.Nodes, &cluster.Node{Name: "n1", PodCIDRs: scene.Prefixes("10.0.0.0/16")})
	n.known()
	n.add(3, "listed")
	list := scene.ManyList(scene.ManyPrefixes)
	others := uint16(1000)
	for i, change := range []struct {
		what string
		list []netip.Prefix
	}{{"comes", list}, {"halves", list[:len(list)/2]}, {"goes", nil}} {
		ended := make(chan time.Duration)
		begin := time.Now()
		insert(n, n.policies.Policies, denying("listed", change.list))
		go func() {
			slot := uint16(4 + i)
			if err := n.engine.Hold(&endpoint.Endpoint{ID: slot}); err != nil {
				t.Error(err)
			}
			added := make(chan struct{})
			go n.neverOpen(slot, change.list, added)
			n.add(slot, "listed")
			close(added)
			for j := 0; j < len(list); j += 50_021 {
				if got := denies(t, k.Datapath, slot, list[j]); got != (j < len(change.list)) {
					t.Errorf("the list %s: %s is denied to a pod that comes then: %t", change.what, list[j], got)
				}
			}
			for known := time.Now(); !n.engine.LastRealised().After(known); time.Sleep(time.Millisecond) {
				n.wake()
			}
			ended <- time.Since(begin)
		}()
		var took time.Duration
		var waits []time.Duration
		for ; took == 0; others++ {
			waits = append(waits, n.add(others, "a"))
			select {
			case took = <-ended:
			case <-time.After(10 * time.Millisecond):
			}
		}
		slices.Sort(waits)
		most, worst := waits[len(waits)*9/10], waits[len(waits)-1]
		t.Logf("the list %s in %s; %d pods came beside, 90 %% of them in %s, the slowest in %s", change.what, took,
			len(waits), most, worst)
		// The slowest may have waited for the machine.
		if len(waits) < 5 || most > took/10 || worst > took/2 {
			t.Errorf("the list %s in %s; ADDs beside it take %s, the slowest %s: want a tenth", change.what, took,
				most, worst)
		}
	}
}

// neverOpen checks that a pod, held at first, may not talk to the addresses of a list, until it is added.
func (n *node) neverOpen(slot uint16, list []netip.Prefix, added <-chan struct{}) {
	for len(list) > 0 {
		if scene.Lookup(n, n.engine.Maps.Datapath, slot, policy.Egress, list[0].Addr(), policy.ProtoTCP,
			80).Verdict == compile.Allowed {
			n.Errorf("endpoint %d is open while its list loads", slot)
			return
		}
		select {
		case <-added:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// wake has the engine look once more.
func (n *node) wake() { n.engine.SetAudit(60000, false) }
