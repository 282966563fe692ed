package operator_test

import (
	"fmt"
	"net/http"
)

// testPolicies: a policy's status says whether it is valid, and on how many nodes it is
// in force.
func testPolicies(c *cluster) {
	r := c.run("")
	c.defined()
	good, bad, wide := "/apis/cilium.io/v2/namespaces/default/ciliumnetworkpolicies/good",
		"/apis/cilium.io/v2/namespaces/default/ciliumnetworkpolicies/bad",
		"/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies/wide"
	c.put(good, "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: good}\nspec: "+
		"{endpointSelector: {}, ingress: [{}]}")
	c.put(wide, "apiVersion: cilium.io/v2\nkind: CiliumClusterwideNetworkPolicy\nmetadata: {name: wide}\nspec: "+
		"{endpointSelector: {}, ingress: [{}]}")
	c.put(bad, "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: bad}\n"+
		"spec: {endpointSelector: {}, egress: [{toGroups: [{aws: {securityGroupsIds: [sg-1]}}]}], "+
		"ingress: [{toPorts: [{ports: "+
		"[{port: '80', endPort: 70}]}]}]}")
	for _, path := range []string{good, wide} {
		c.becomes(path, "status conditions type=Valid status", "True")
	}
	c.becomes(bad, "status conditions type=Valid status", "False")
	c.becomes(bad, "status conditions type=Valid reason", "Refused")
	for _, want := range []string{"spec.ingress[0].toPorts[0].ports[0].endPort: 70 is less than the first port, 80"} {
		c.contains(bad, "status conditions type=Valid message", want)
	}
	c.becomes(bad, "status conditions type=Enforced status", "False")
	c.becomes(good, "status conditions type=Enforced status", "True")
	c.metrics(r, "myelin_operator_policies_invalid 1")
	if got := c.field(good, "status realised"); got != "" {
		c.Errorf("without nodes that tell: %s", got)
	}

	testRealised(c, good, wide)
	// Valid, it may have parts that are not enforced.
	c.merge(bad, "spec: {ingress: [{}]}")
	c.becomes(bad, "status conditions type=Valid status", "True")
	c.becomes(bad, "status conditions type=Enforced reason", "PartlyEnforced")
	c.contains(bad, "status conditions type=Enforced message", "spec.egress[0].toGroups: toGroups is not supported")
	// Mended, it is enforced.
	c.merge(bad, "spec: {egress: null, ingress: [{}]}")
	c.becomes(bad, "status conditions type=Enforced status", "True")
	c.metrics(r, "myelin_operator_policies_invalid 0")
}

const clusterPolicyDefinition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: clusternetworkpolicies.policy.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, for a test"}
spec:
  group: policy.networking.k8s.io
  scope: Cluster
  names: {plural: clusternetworkpolicies, singular: clusternetworkpolicy, kind: ClusterNetworkPolicy,
    listKind: ClusterNetworkPolicyList}
  versions:
  - name: v1alpha2
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// testClusterPolicies: ClusterNetworkPolicies, whose definition is installed later, get conditions and nothing else;
// conditions of other writers stay.
func testClusterPolicies(c *cluster) {
	c.run("")
	c.defined()
	path, cilium, text := node("p0")
	c.put(path, text)
	c.becomes(cilium, "metadata name", "p0")
	c.put("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusternetworkpolicies.policy.networking.k8s.io",
		clusterPolicyDefinition)
	const kind = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
	c.eventually("the kind is served", func() string {
		if code, body := c.server.Try(http.MethodGet, kind, "", nil); code != http.StatusOK {
			return fmt.Sprint(code, string(body))
		}
		return ""
	})
	good, bad := kind+"/good", kind+"/bad"
	head := "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: %s}\nspec: " +
		"{tier: Admin, priority: 10, subject: {namespaces: {}}, egress: [{action: Deny, to: [%s]}]}"
	c.put(good, fmt.Sprintf(head, "good", "{namespaces: {}}"))
	c.put(bad, fmt.Sprintf(head, "bad", "{networks: [none]}"))
	c.merge(good+"/status", "status: {conditions: [{type: Reviewed, status: 'True', reason: R, message: m, "+
		"lastTransitionTime: '2026-01-01T00:00:00Z'}]}")
	c.becomes(good, "status conditions type=Valid status", "True")
	c.becomes(good, "status conditions type=Enforced status", "True")
	c.becomes(good, "status conditions type=Reviewed status", "True")
	c.becomes(bad, "status conditions type=Valid reason", "Refused")
	c.contains(bad, "status conditions type=Valid message", "spec.egress[0].to[0].networks[0]")
	c.becomes(bad, "status conditions type=Enforced status", "False")
	c.merge(bad, "spec: {egress: []}")
	c.becomes(bad, "status conditions type=Valid status", "True")
	c.becomes(bad, "status conditions type=Valid observedGeneration", "2")
	for _, path := range []string{good, bad} {
		if got := c.field(path, "status realised"); got != "" {
			c.Errorf("counts in the status of %s: %s", path, got)
		}
	}
	for _, path := range []string{good, bad, path} {
		c.server.Delete(path)
	}
	c.becomes(cilium, "", "404")
}

// testRealised: two nodes tell: one has all, the other all but one.
func testRealised(c *cluster, good, wide string) {
	c.Helper()
	// The statuses that were just written made versions of their own, in any order: this one is the newest.
	c.merge(wide, "metadata: {labels: {newest: 'true'}}")
	version := c.field(wide, "metadata resourceVersion")
	for _, name := range []string{"p0", "p1"} {
		path, cilium, text := node(name)
		c.put(path, text)
		c.becomes(cilium, "metadata name", name)
		failing := ""
		if name == "p1" {
			failing = ", failing: [{kind: CiliumNetworkPolicy, namespace: default, name: good, reason: no room}]"
		}
		c.merge(cilium+"/status", "status: {policies: {revision: '"+version+"'"+failing+"}}")
	}
	c.becomes(good, "status realised nodes", "1")
	c.becomes(good, "status realised wanted", "2")
	c.becomes(good, "status realised failing", `[{"node":"p1","reason":"no room"}]`)
	c.becomes(wide, "status realised nodes", "2")
	settled := c.field(wide, "metadata resourceVersion")
	if c.field(wide, "status realised revision") == settled {
		c.Error("writing the status made a new version of the policy")
	}

	// Another version: no node has it, until one tells.
	c.merge(wide, "spec: {egress: [{}]}")
	c.becomes(wide, "status realised nodes", "0")
	c.becomes(wide, "status realised generation", "2")
	c.merge("/apis/cilium.io/v2/ciliumnodes/p0/status",
		"status: {policies: {revision: '"+c.field(wide, "status realised revision")+"'}}")
	c.becomes(wide, "status realised nodes", "1")
	for _, name := range []string{"p0", "p1"} {
		path, cilium, _ := node(name)
		c.server.Delete(path)
		c.becomes(cilium, "", "404")
	}
	c.becomes(wide, "status realised", "")
}

// service is one of type LoadBalancer.
func service(name, more, spec string) (path, text string) {
	return "/api/v1/namespaces/default/services/" + name,
		fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, %s}\nspec: {type: LoadBalancer, ports: "+
			"[{port: 80}], %s}", name, more, spec)
}

const (
	ingress   = "status loadBalancer ingress"
	satisfied = "status conditions type=cilium.io/IPAMRequestSatisfied status"
	why       = "status conditions type=cilium.io/IPAMRequestSatisfied reason"
)

func addresses(list ...string) string {
	text := ""
	for i, a := range list {
		if i > 0 {
			text += ","
		}
		text += `{"ip":"` + a + `","ipMode":"VIP"}`
	}
	return "[" + text + "]"
}

// testServices: Services get addresses of pools, keep them, and are told why they get none.
func testServices(c *cluster) {
	r := c.run("")
	c.defined()
	web, text := service("web", "labels: {app: web}", "ipFamilyPolicy: RequireDualStack")
	c.put(web, text)
	other, text := service("other", "", "loadBalancerClass: example.com/other")
	c.put(other, text)
	pool := "/apis/cilium.io/v2/ciliumloadbalancerippools/blue"
	c.put(pool, "apiVersion: cilium.io/v2\nkind: CiliumLoadBalancerIPPool\nmetadata: {name: blue}\nspec: {blocks: "+
		"[{cidr: 198.51.100.0/30}, {start: '2001:db8::5', stop: '2001:db8::6'}], allowFirstLastIPs: 'No'}")
	c.becomes(web, ingress, addresses("198.51.100.1", "2001:db8::5"))
	c.becomes(web, satisfied, "True")
	c.becomes(pool, "status conditions type=cilium.io/IPsAvailable message", "2")
	asks, text := service("asks", "annotations: {lbipam.cilium.io/ips: '198.51.100.1,198.51.100.2'}", "")
	c.put(asks, text)
	c.becomes(asks, ingress, addresses("198.51.100.2"))
	c.becomes(asks, why, "already_allocated")
	late, text := service("late", "", "")
	c.put(late, text)
	c.becomes(late, why, "out_of_ips")
	c.becomes(late, satisfied, "False")
	c.metrics(r, "myelin_operator_lbipam_services_unsatisfied 2")

	// A second pool overlaps the first: nothing is given of it, until it is mended.
	red := "/apis/cilium.io/v2/ciliumloadbalancerippools/red"
	c.put(red, "apiVersion: cilium.io/v2\nkind: CiliumLoadBalancerIPPool\nmetadata: {name: red}\nspec: {blocks: "+
		"[{cidr: 198.51.100.0/29}]}")
	c.becomes(red, "status conditions type=cilium.io/PoolConflict status", "True")
	c.becomes(late, satisfied, "False")
	c.merge(red, "spec: {blocks: [{cidr: 203.0.113.8/32}]}")
	c.becomes(red, "status conditions type=cilium.io/PoolConflict status", "False")
	c.becomes(late, ingress, addresses("203.0.113.8"))

	// A disabled pool leaves what it gave; a restart changes nothing; a pool that is gone takes it away.
	c.merge(pool, "spec: {disabled: true}")
	r.stop()
	c.run("")
	c.merge(asks, "metadata: {annotations: {lbipam.cilium.io/ips: null}}")
	c.becomes(asks, satisfied, "True")
	c.becomes(asks, ingress, addresses("198.51.100.2"))
	if got := c.field(web, ingress); got != addresses("198.51.100.1", "2001:db8::5") {
		c.Errorf("after a restart web has %s", got)
	}
	c.server.Delete(pool)
	c.becomes(web, ingress, "")
	c.becomes(web, why, "out_of_ips")
	c.contains(web, "status conditions type=cilium.io/IPAMRequestSatisfied message", "IPv6: there is no pool")
	if got := c.field(other, "status"); got != `{"loadBalancer":{}}` {
		c.Errorf("a Service of another's class became %s", got)
	}
	for _, path := range []string{web, asks, late, other, red} {
		c.server.Delete(path)
	}
}

// testSharing: Services with one key have one address together, and a Service that is no
// LoadBalancer any more gives its own back.
func testSharing(c *cluster) {
	c.run("")
	pool := "/apis/cilium.io/v2alpha1/ciliumloadbalancerippools/one"
	c.put(pool, "apiVersion: cilium.io/v2alpha1\nkind: CiliumLoadBalancerIPPool\nmetadata: {name: one}\nspec: "+
		"{blocks: [{cidr: 198.51.100.9/32}], serviceSelector: {matchLabels: {io.kubernetes.service.namespace: "+
		"default}}}")
	a, text := service("a", "annotations: {lbipam.cilium.io/sharing-key: k}", "")
	c.put(a, text)
	c.becomes(a, ingress, addresses("198.51.100.9"))
	b, text := service("b", "annotations: {io.cilium/lb-ipam-sharing-key: k}", "")
	c.put(b, text)
	c.becomes(b, why, "out_of_ips")
	c.merge(b, "spec: {ports: [{port: 443}]}")
	c.becomes(b, ingress, addresses("198.51.100.9"))
	c.merge(a, "spec: {type: ClusterIP}")
	c.becomes(a, ingress, "")
	c.becomes(a, satisfied, "")
	for _, path := range []string{a, b, pool} {
		c.server.Delete(path)
	}
}
