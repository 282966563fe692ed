package clustertest

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// nodePorted is the Service web of a pod of that name, at a port of all nodes.
const nodePorted = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, ipFamilyPolicy: RequireDualStack, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// atNodePort is the URL of nodePorted at a node's address.
func (c *cluster) atNodePort(address string) string {
	c.t.Helper()
	return "http://" + net.JoinHostPort(address, c.kubectl("get", "service", "web", "-o",
		"jsonpath={.spec.ports[0].nodePort}")) + "/hostname"
}

// each asks for a pod by its addresses, from places.
func (c *cluster) each(pod string, places ...[]string) {
	c.t.Helper()
	for _, at := range c.addresses(pod) {
		for _, place := range places {
			c.asks(pod, "http://"+at+":8080/hostname", place...)
		}
	}
}

// notRestarted: a pod is the one that it was.
func (c *cluster) notRestarted(pod, uid string) {
	c.t.Helper()
	if now, restarts := c.field(pod, ".metadata.uid"), c.field(pod,
		".status.containerStatuses[0].restartCount"); now != uid || restarts != "0" {
		c.t.Errorf("pod %s was %s and is %s, restarted %s times", pod, uid, now, restarts)
	}
}

// TestNodeAddress gives a node other addresses under its pods: they run on, all nodes and pods reach them and are
// reached by them, and the node's port is at the new addresses.
func TestNodeAddress(t *testing.T) {
	c := use(t)
	c.apply(server("web", "n3", "", "") + server("client", "n1", "", "") + nodePorted)
	c.ready("web")
	c.ready("client")
	uid := c.field("web", ".metadata.uid")
	c.asks("web", c.atNodePort("172.30.0.13"), "in-control")
	t.Cleanup(func() { c.run("readdress", "n3", "13") })
	c.run("readdress", "n3", "23")
	eventually(t, 30*time.Second, func() error {
		if now := c.run("kubectl", "get", "node", "n3", "-o",
			"jsonpath={.status.addresses[*].address}"); !strings.Contains(now, "172.30.0.23 fd30::23") {
			return fmt.Errorf("the Node has addresses %s", now)
		}
		return nil
	})
	c.each("web", c.within("client"), []string{"in-node", "n1"}, []string{"in-node", "n3"}, []string{"in-control"})
	c.each("client", c.within("web"), []string{"in-node", "n3"})
	for _, at := range []string{"172.30.0.23", "fd30::23"} {
		for _, place := range [][]string{{"in-control"}, {"in-node", "n1"}, c.within("client")} {
			c.asks("web", c.atNodePort(at), place...)
		}
	}
	c.asks("web", c.atNodePort("172.30.0.11"), "in-control")
	c.notRestarted("web", uid)
}

// TestPodCIDRs deletes a Node object, which kubelet makes anew with other podCIDRs: pods that run keep their addresses
// and are reached by all as before, new ones have addresses of the new podCIDRs.
func TestPodCIDRs(t *testing.T) {
	c := use(t)
	c.apply(server("web", "n3", "", "") + server("client", "n1", "", "") + nodePorted)
	c.ready("web")
	c.ready("client")
	uid, before := c.field("web", ".metadata.uid"), c.podCIDRs("n3")
	c.run("rejoin", "n3")
	now := c.podCIDRs("n3")
	if slices.Equal(now, before) {
		t.Fatalf("the node has podCIDRs %v still", before)
	}
	c.each("web", c.within("client"), []string{"in-node", "n1"}, []string{"in-node", "n3"})
	c.each("client", c.within("web"))
	c.apply(server("late", "n3", "", ""))
	c.ready("late")
	for i, text := range c.addresses("late") {
		if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err != nil || !now[i].Contains(a) {
			t.Errorf("a new pod has %s, which is not of %s", text, now[i])
		}
	}
	c.each("late", c.within("client"), c.within("web"), []string{"in-node", "n1"})
	c.each("web", c.within("late"))
	c.asks("web", c.atNodePort("172.30.0.13"), "in-control")
	c.notRestarted("web", uid)
}

// podCIDRs are a node's, one of each family.
func (c *cluster) podCIDRs(node string) (list []netip.Prefix) {
	c.t.Helper()
	for _, text := range strings.Fields(c.run("kubectl", "get", "node", node, "-o", "jsonpath={.spec.podCIDRs[*]}")) {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			c.t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) != 2 {
		c.t.Fatalf("%s has podCIDRs %v, want one of each family", node, list)
	}
	return list
}
