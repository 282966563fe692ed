package operator_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"myelin/kube/crd"
	"myelin/operator"
)

// TestServer is all that needs a real API server, in one, for a start takes
// seconds. The operator has the rights of role.yaml and no others.
func TestServer(t *testing.T) {
	c := newCluster(t)
	run := func(name string, test func(*cluster)) {
		t.Run(name, func(t *testing.T) { test(&cluster{T: t, server: c.server}) })
	}
	run("Detect", testDetect)
	run("Definitions", testDefinitions)
	run("ClusterPool", testClusterPool)
	run("Kubernetes", testKubernetes)
	run("Migration", testMigration)
	run("Policies", testPolicies)
	run("ClusterPolicies", testClusterPolicies)
	run("Services", testServices)
	run("Sharing", testSharing)
	run("Away", testAway)
}

const definitionPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ciliumcidrgroups.cilium.io"

// testDetect: where Cilium runs the operator refuses to, and says what to do; told to migrate it goes
// on.
func testDetect(c *cluster) {
	daemon := "/apis/apps/v1/namespaces/kube-system/daemonsets/cilium"
	c.put(daemon, "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: cilium}\n"+
		"spec: {selector: {matchLabels: {k8s-app: cilium}}, template: {metadata: {labels: {k8s-app: cilium}}, spec: "+
		"{containers: [{name: a, image: cilium}]}}}")
	err := c.make("", nil).Run(c.Context())
	if err == nil || !strings.Contains(err.Error(), "DaemonSet kube-system/cilium") ||
		!strings.Contains(err.Error(), "--migrate-from-cilium") {
		c.Errorf("with a DaemonSet: %v", err)
	}
	c.server.Delete(daemon)
	// Pods with the label are Cilium's only if its definitions exist.
	pod := "/api/v1/namespaces/kube-system/pods/cilium-x1"
	c.put(pod, "apiVersion: v1\nkind: Pod\nmetadata: {name: cilium-x1, labels: {k8s-app: cilium}}\nspec: "+
		"{containers: [{name: a, image: cilium}]}")
	r := c.make("", func(p *operator.Params) { p.Log = nil })
	if found, err := r.detect(c); err != nil || found != nil {
		c.Errorf("with pods of that label: %v %v", found, err)
	}
	c.put(definitionPath, ciliumDefinition)
	if err := r.Run(c.Context()); err == nil || !strings.Contains(err.Error(),
		"kube-system/cilium-x1; CustomResourceDefinitions such as ciliumcidrgroups.cilium.io") {
		c.Errorf("with pods and definitions: %v", err)
	}
	if got := c.field(definitionPath, "metadata labels "+crd.VersionLabel); got != "" {
		c.Errorf("the definition is touched: %s", got)
	}
	c.server.Delete(pod)
}

const ciliumDefinition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ciliumcidrgroups.cilium.io, labels: {io.cilium.k8s.crd.schema.version: 1.32.0}}
spec:
  group: cilium.io
  scope: Cluster
  names: {plural: ciliumcidrgroups, singular: ciliumcidrgroup, kind: CiliumCIDRGroup, listKind: CiliumCIDRGroupList}
  versions:
  - {name: v2, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// testDefinitions: kinds are defined, what a Cilium that is gone has left and older ones are replaced,
// later ones stay. Objects stay in any case.
func testDefinitions(c *cluster) {
	group := "/apis/cilium.io/v2/ciliumcidrgroups/office"
	c.eventually("Cilium's own kind is served", func() string {
		code, body := c.server.Try(http.MethodGet, "/apis/cilium.io/v2/ciliumcidrgroups", "", nil)
		if code != http.StatusOK {
			return string(body)
		}
		return ""
	})
	c.put(group, "apiVersion: cilium.io/v2\nkind: CiliumCIDRGroup\nmetadata: {name: office}\nspec: {externalCIDRs: "+
		"[192.0.2.0/24]}")
	r := c.run("")
	c.defined()
	label := "metadata labels " + crd.VersionLabel
	c.becomes(definitionPath, label, crd.Version)
	r.stop()
	for _, step := range []struct{ before, after string }{{"0.9.9", crd.Version}, {"99.0.0", "99.0.0"}} {
		c.merge(definitionPath, "metadata: {labels: {"+crd.VersionLabel+": "+step.before+"}}")
		r := c.run("")
		c.becomes(definitionPath, label, step.after)
		c.eventually("it has looked", func() string {
			if leading, problem := r.State(); !leading || problem != nil ||
				step.after == "99.0.0" && !strings.Contains(r.log.String(), "of a later version") {
				return fmt.Sprint(leading, problem, r.log)
			}
			return ""
		})
		r.stop()
	}
	c.merge(definitionPath, "metadata: {labels: {"+crd.VersionLabel+": "+crd.Version+"}}")
	if got := c.field(group, "spec externalCIDRs"); got != `["192.0.2.0/24"]` {
		c.Errorf("the group became %s", got)
	}
}

const pools = "ipv6.enabled: true\nipam: {mode: cluster-pool, operator: {clusterPoolIPv4PodCIDRList: [10.0.0.0/23, " +
	"10.9.0.0/24], clusterPoolIPv6PodCIDRList: fd00::/110, clusterPoolIPv6MaskSize: 112}}"

func node(name string) (path, cilium, text string) {
	return "/api/v1/nodes/" + name, "/apis/cilium.io/v2/ciliumnodes/" + name,
		"apiVersion: v1\nkind: Node\nmetadata: {name: " + name + "}\n"
}

// testClusterPool: three nodes, a restart, a fourth for which nothing is left, and one that goes.
func testClusterPool(c *cluster) {
	r := c.run(pools)
	c.defined()
	want := []string{`["10.0.0.0/24","fd00::/112"]`, `["10.0.1.0/24","fd00::1:0/112"]`,
		`["10.9.0.0/24","fd00::2:0/112"]`}
	for i, cidrs := range want {
		path, cilium, text := node(fmt.Sprint("n", i))
		c.put(path, text)
		c.merge(path+"/status",
			fmt.Sprintf("status: {addresses: [{type: InternalIP, address: 192.0.2.%d}, {type: Hostname, address: x}]}",
				i+1))
		c.becomes(cilium, "spec ipam podCIDRs", cidrs)
		c.becomes(cilium, "spec addresses", fmt.Sprintf(`[{"ip":"192.0.2.%d","type":"InternalIP"}]`, i+1))
	}
	path, cilium, text := node("n3")
	c.put(path, text)
	c.becomes(cilium, "status ipam operator-status error", "no /24 is left in 10.0.0.0/23, 10.9.0.0/24")
	c.becomes(cilium, "spec ipam podCIDRs", `["fd00::3:0/112"]`)
	c.metrics(r, `myelin_operator_ipam_nodes{category="in-deficit"} 1`)
	c.metrics(r, `myelin_operator_ipam_available_pod_cidrs{family="ipv4"} 0`)
	c.contains("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dn3", "items", "no /24 is left")
	r.stop()

	// Without an operator a node goes, and another comes: what the others have stays.
	gone, left, _ := node("n1")
	c.server.Delete(gone)
	path5, cilium5, text5 := node("n5")
	c.put(path5, text5)
	c.run(pools)
	c.becomes(left, "", "404")
	c.becomes(cilium, "spec ipam podCIDRs", `["fd00::3:0/112","10.0.1.0/24"]`)
	c.becomes(cilium, "status ipam operator-status error", "")
	c.becomes(cilium5, "status ipam operator-status error", "no /24 is left in 10.0.0.0/23, 10.9.0.0/24")
	for _, i := range []int{0, 2} {
		_, cilium, _ := node(fmt.Sprint("n", i))
		if got := c.field(cilium, "spec ipam podCIDRs"); got != want[i] {
			c.Errorf("n%d has %s, had %s", i, got, want[i])
		}
	}
	// Another client gives n5 what n0 has.
	c.merge(cilium5, "spec: {ipam: {podCIDRs: [10.0.0.0/24]}}")
	c.contains(cilium5, "status ipam operator-status error", "overlaps what node n0 has")
	c.server.Delete(path5)
	c.becomes(cilium5, "", "404")
}

// testKubernetes: CiliumNodes have what Nodes have.
func testKubernetes(c *cluster) {
	c.run("")
	path, cilium, text := node("k0")
	c.put(path, text+"spec: {podCIDR: 172.16.0.0/24, podCIDRs: [172.16.0.0/24, 'fd01::/112']}")
	c.becomes(cilium, "spec ipam podCIDRs", `["172.16.0.0/24","fd01::/112"]`)
	c.server.Delete(path)
	c.becomes(cilium, "", "404")
}

// testMigration: CiliumNodes of nodes that are Cilium's still are its agents' own; what these said of themselves goes
// when the node has gone over.
func testMigration(c *cluster) {
	c.start(c.make("", func(p *operator.Params) { p.MigrateFromCilium = true }))
	path, cilium, text := node("m0")
	labelled := strings.Replace(text, "name: m0", `name: m0, labels: {myelin.io/cilium: "true"}`, 1)
	const spec = "spec: {podCIDR: 172.16.0.0/24, podCIDRs: [172.16.0.0/24]}"
	c.put(path, labelled+spec)
	c.put(cilium, "apiVersion: cilium.io/v2\nkind: CiliumNode\nmetadata: {name: m0}\nspec: {addresses: [{type: "+
		"CiliumInternalIP, ip: 172.16.0.9}], "+
		"health: {ipv4: 172.16.0.7}, ipam: {podCIDRs: [172.16.0.0/24]}}")
	other, ciliumOther, textOther := node("m1")
	c.put(other, textOther+"spec: {podCIDR: 172.16.1.0/24, podCIDRs: [172.16.1.0/24]}")
	c.becomes(ciliumOther, "spec ipam podCIDRs", `["172.16.1.0/24"]`)
	if got := c.field(cilium, "spec addresses"); !strings.Contains(got, "CiliumInternalIP") {
		c.Errorf("addresses of a node of Cilium's become %s", got)
	}
	c.put(path, text+spec)
	c.becomes(cilium, "spec addresses", "[]")
	c.becomes(cilium, "spec health", "")
	c.becomes(cilium, "spec ipam podCIDRs", `["172.16.0.0/24"]`)
	for _, path := range []string{path, other} {
		c.server.Delete(path)
	}
	c.becomes(cilium, "", "404")
}

// testAway: of two operators one leads; while the server is away none does, for another might; then one
// does again.
func testAway(c *cluster) {
	var both []*running
	for _, name := range []string{"a", "b"} {
		both = append(both, c.start(c.make("", func(p *operator.Params) { p.LeaderElect, p.Identity = true, name })))
	}
	leaders := func(want int) func() string {
		return func() string {
			n := 0
			for _, r := range both {
				if leads, _ := r.State(); leads {
					n++
				}
			}
			if n != want {
				return fmt.Sprintf("%d lead, want %d", n, want)
			}
			return ""
		}
	}
	c.eventually("one leads", leaders(1))
	c.server.Kill()
	begin := time.Now()
	c.eventually("none leads without the server", leaders(0))
	if took := time.Since(begin); took > 12*time.Second {
		c.Errorf("it led for %s more: another might have followed", took)
	}
	c.server.Resume()
	c.eventually("one leads again", leaders(1))
}
