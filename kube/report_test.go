package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cilium/statedb"

	"myelin/kube"
	"myelin/kube/crd"
	"myelin/test/kube/apiserver"
)

// define installs the definitions that the operator would.
func (s server) define(t *testing.T) {
	t.Helper()
	text, err := crd.YAML()
	if err != nil {
		t.Fatal(err)
	}
	s.apply(t, string(text))
}

// TestCiliumNodes: podCIDRs come from CiliumNodes where they are to, whichever comes first, and
// what a node has of policies goes into its CiliumNode.
func TestCiliumNodes(t *testing.T) {
	s := server{apiserver.Start(t)}
	s.Grant(apiserver.Agent, "role.yaml")
	w := followWith(t, options(s), func(p *kube.Params) { p.ClusterPool = true }).synced()
	s.apply(t, "{apiVersion: v1, kind: Node, metadata: {name: a}, spec: {podCIDR: 192.0.2.0/24}}")
	w.podCIDRs("a", "[]")
	s.define(t)
	const nodes = "/apis/cilium.io/v2/ciliumnodes/"
	w.eventually("CiliumNodes are served", func() string {
		if code, body := s.Try(http.MethodGet, nodes, "", nil); code != http.StatusOK {
			return string(body)
		}
		return ""
	})
	put := func(name, cidrs string) {
		s.Apply(nodes+name,
			[]byte("{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {name: "+name+"}, spec: {ipam: {podCIDRs: ["+
				cidrs+"]}}}"))
	}
	put("a", "10.0.1.0/24, 'fd00::/112'")
	w.podCIDRs("a", "[10.0.1.0/24 fd00::/112]")
	put("b", "10.0.2.0/24")
	s.apply(t, "{apiVersion: v1, kind: Node, metadata: {name: b, labels: {zone: x}}}")
	w.podCIDRs("b", "[10.0.2.0/24]")
	s.Merge("/api/v1/nodes/b", []byte(`{"metadata":{"labels":{"zone":"y"}}}`))
	w.podCIDRs("b", "[10.0.2.0/24]")
	put("b", "10.0.2.1/24")
	w.eventually("a bad one is refused", func() string {
		for p := range w.source.Problems().All(w.db.ReadTxn()) {
			if p.Object == "CiliumNode b" && p.Field == "spec.ipam.podCIDRs[0]" {
				return ""
			}
		}
		return "nothing is"
	})
	w.podCIDRs("b", "[10.0.2.0/24]")
	s.Delete(nodes + "b")
	w.podCIDRs("b", "[]")
	testReport(t, s, w)
}

// podCIDRs waits until a node has them.
func (w *world) podCIDRs(node, want string) {
	w.Helper()
	w.eventually("node "+node, func() string {
		got := "nothing"
		for n := range w.cluster.Nodes.All(w.db.ReadTxn()) {
			if n.Name == node {
				got = fmt.Sprint(n.PodCIDRs)
			}
		}
		if got != want {
			return "has " + got + ", want " + want
		}
		return ""
	})
}

// reported is what node a said.
func (s server) reported(t *testing.T) (p crd.NodePolicies) {
	t.Helper()
	var o crd.CiliumNode
	if err := json.Unmarshal(s.Get("/apis/cilium.io/v2/ciliumnodes/a"), &o); err != nil {
		t.Fatal(err)
	}
	if o.Status.Policies != nil {
		p = *o.Status.Policies
	}
	return p
}

// version is an object's.
func (s server) version(t *testing.T, path string) string {
	t.Helper()
	var o struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(s.Get(path), &o); err != nil {
		t.Fatal(err)
	}
	return o.Metadata.ResourceVersion
}

func testReport(t *testing.T, s server, w *world) {
	var realised atomic.Uint64
	var failing atomic.Value
	failing.Store([]crd.FailingPolicy(nil))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- w.source.Report(ctx, kube.Reports{
			Node: "a", Realised: realised.Load, Failing: func() ([]crd.FailingPolicy, string) {
				return failing.Load().([]crd.FailingPolicy), ""
			},
		})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	s.apply(t, "{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: p}, spec: {endpointSelector: "+
		"{}, ingress: [{}]}}")
	const path = "/apis/cilium.io/v2/namespaces/default/ciliumnetworkpolicies/p"
	first := s.version(t, path)
	var table statedb.Revision
	w.eventually("the policy is known", func() string {
		if table = w.policies.Policies.Revision(w.db.ReadTxn()); w.policies.Policies.NumObjects(w.db.ReadTxn()) == 0 {
			return "it isn't"
		}
		return ""
	})
	realised.Store(table)
	w.eventually("the policy's version is reported", func() string {
		if got := s.reported(t).Revision; got != first {
			return "reported is " + got + ", want " + first
		}
		return ""
	})
	// The operator's status is no new version; another rule is, and the kernel doesn't have it.
	s.Merge(path+"/status",
		[]byte(`{"status":{"realised":{"nodes":1,"wanted":1,"generation":1,"revision":"`+first+`"}}}`))
	s.Merge(path, []byte(`{"spec":{"egress":[{}]}}`))
	failing.Store([]crd.FailingPolicy{{Kind: "CiliumNetworkPolicy", Namespace: "default", Name: "p",
		Reason: strings.Repeat("x", 10)}})
	w.eventually("what fails is reported", func() string {
		if got := s.reported(t); len(got.Failing) != 1 || got.Revision != first {
			return fmt.Sprintf("%+v", got)
		}
		return ""
	})
	realised.Store(1 << 40)
	failing.Store([]crd.FailingPolicy(nil))
	w.eventually("it has all", func() string {
		if got := s.reported(t); len(got.Failing) != 0 || got.Revision != s.version(t, path) {
			return fmt.Sprintf("%+v", got)
		}
		return ""
	})
}
