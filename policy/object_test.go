package policy_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/policy"
)

// object is a policy with one rule of each kind of peer.
func object() *policy.Object {
	web := policy.Requirement{Source: "k8s", Key: "app", Op: policy.In, Values: []string{"web"}}
	shop := policy.Requirement{Source: "k8s", Key: "io.kubernetes.pod.namespace", Op: policy.In,
		Values: []string{"shop"}}
	zones := policy.Requirement{Source: "any", Key: "zone", Op: policy.NotIn, Values: []string{"a", "b"}}
	selector := policy.Selector{web, zones}
	ref := policy.Ref{Kind: "CiliumNetworkPolicy", Key: cluster.Key{Namespace: "shop", Name: "web"}}
	origin := policy.Origin{Ref: ref, Path: "spec.egress[0]", Source: "manifests:a.yaml", Line: 7}
	prefixes := &policy.Prefixes{
		Include: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")},
		Except:  []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
	}
	return &policy.Object{
		Ref: ref, Source: "manifests:a.yaml", Since: time.Unix(1000, 0).UTC(),
		Specs: []policy.Spec{{
			Ref: ref, Subject: policy.Selector{web, shop}, Tier: policy.TierDefault, Isolates: [2]bool{false, true},
			Rules: []policy.Rule{
				{Origin: origin, Direction: policy.Egress, Action: policy.Allow, Peers: []policy.Peer{
					{Endpoints: &selector, Required: []policy.Selector{{shop}}}, {Nodes: &policy.Selector{}},
					{Prefixes: prefixes},
					{Prefixes: &policy.Prefixes{Group: "office", Pods: true}},
					{Service: &policy.ServicePeer{Name: "db"}},
				}, Ports: []policy.Port{{Proto: policy.ProtoTCP, First: 80, Last: 90},
					{Proto: policy.ProtoUDP, Last: 65535},
					{Proto: policy.ProtoICMPv6, First: 128, Last: 128}, {Proto: policy.ProtoSCTP, Name: "sig"}}},
				{Origin: origin, Direction: policy.Ingress, Action: policy.Deny, Peers: []policy.Peer{}},
				{Origin: origin, Direction: policy.Ingress, Action: policy.Pass,
					Ports: []policy.Port{{Proto: policy.ProtoAny},
						{Proto: 112, First: 1, Last: 1}}},
			},
		}},
	}
}

func TestRuleText(t *testing.T) {
	want := []string{
		"allow egress to k8s:app=web,any:zone notin (a,b) if k8s:io.kubernetes.pod.namespace=shop or nodes all or " +
			"10.0.0.0/8 fd00::/8 except 10.1.0.0/16 outside or group office or service */db on 80-90/TCP UDP ICMPv6 " +
			"128 sig/SCTP",
		"deny ingress from no peer",
		"pass ingress from everybody on all 1/112",
	}
	for i, r := range object().Specs[0].Rules {
		if got := r.String(); got != want[i] {
			t.Errorf("rule %d: got\n%s\nwant\n%s", i, got, want[i])
		}
	}
}

func TestObjectText(t *testing.T) {
	o := object()
	more := policy.Spec{Nodes: true, Subject: policy.Selector{{Source: "any", Key: "role", Op: policy.NotExists}}}
	everywhere := policy.Spec{Subject: policy.Selector{{Source: "k8s", Key: "io.kubernetes.pod.namespace",
		Op: policy.Exists}}}
	o.Specs = append(o.Specs, o.Specs[0], more, everywhere, policy.Spec{})
	want := []string{"CiliumNetworkPolicy", "shop/web", "shop/k8s:app=web; nodes !any:role; */all; all", "6",
		"accepted", "manifests:a.yaml"}
	if got := o.TableRow(); !slices.Equal(got, want) || len(got) != len(o.TableHeader()) {
		t.Errorf("got %q, want %q", got, want)
	}
	o.Problem = "spec: must be set"
	if got := o.TableRow()[4]; got != "refused: spec: must be set" {
		t.Errorf("state is %q", got)
	}
	g := &policy.Group{Name: "office", Labels: map[string]string{"b": "2", "a": "1"},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Source: "s"}
	if got, want := g.TableRow(), []string{"office", "1", "a=1,b=2", "accepted", "s"}; !slices.Equal(got, want) ||
		len(got) != len(g.TableHeader()) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestObjectJSON(t *testing.T) {
	o := object()
	o.Specs[0].Rules = o.Specs[0].Rules[:1]
	got, err := json.Marshal(o)
	want := `{"ref":{"kind":"CiliumNetworkPolicy","namespace":"shop","name":"web"},"source":"manifests:a.yaml",` +
		`"specs":[{"subject":"k8s:app=web,k8s:io.kubernetes.pod.namespace=shop",` +
		`"tier":"default","rules":[{"origin":{"ref":{"kind":"CiliumNetworkPolicy","namespace":"shop","name":"web"},` +
		`"path":"spec.egress[0]","source":"manifests:a.yaml","line":7},` +
		`"direction":"egress","action":"allow","peers":[{"endpoints":"k8s:app=web,any:zone notin ` +
		`(a,b)","required":["k8s:io.kubernetes.pod.namespace=shop"]},{"nodes":"all"},` +
		`{"prefixes":{"include":["10.0.0.0/8","fd00::/8"],"except":["10.1.0.0/16"]}},` +
		`{"prefixes":{"group":"office","pods":true}},{"service":{"name":"db"}}],` +
		`"ports":["80-90/TCP","UDP","ICMPv6 128","sig/SCTP"]}],"isolates":["egress"]}],"since":"1970-01-01T00:16:40Z"}`
	if err != nil || string(got) != want {
		t.Errorf("got\n%s\nwant\n%s\n%v", got, want, err)
	}
}

// Rows that differ in when they began say the same; those from other places do
// not, but for Anywhere.
func TestObjectEqual(t *testing.T) {
	a, b := object(), object()
	b.Since = time.Unix(2000, 0)
	if !a.Equal(b) {
		t.Error("rows of two times differ")
	}
	b.Specs[0].Rules[0].Origin.Line = 8
	if a.Equal(b) || !a.Anywhere().Equal(b.Anywhere()) {
		t.Error("rows of two lines are equal, or differ anywhere")
	}
	if b.Specs[0].Rules[0].Origin.Line != 8 {
		t.Error("Anywhere changed the row")
	}
	b.Specs[0].Rules[0].Ports[0].Last = 91
	if a.Anywhere().Equal(b.Anywhere()) {
		t.Error("rows of two ports are equal")
	}
}

func TestTablesTwice(t *testing.T) {
	db := statedb.New()
	tables, err := policy.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := policy.NewTables(db); err == nil {
		t.Error("the tables are made twice")
	}
	o := object()
	txn := db.WriteTxn(tables.Policies, tables.Groups)
	tables.Policies.Insert(txn, o)
	tables.Groups.Insert(txn, &policy.Group{Name: "office"})
	txn.Commit()
	if got, _, ok := tables.Policies.Get(db.ReadTxn(), policy.ObjectByRef(o.Ref)); !ok || got != o {
		t.Errorf("got %v", got)
	}
	if _, _, ok := tables.Groups.Get(db.ReadTxn(), policy.GroupByName("office")); !ok {
		t.Error("the group is not there")
	}
}
