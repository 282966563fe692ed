package clustertest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMigrateFromPtp has pods on a node that another network gave their interfaces, out of the same podCIDRs, before
// Myelin came: they run on, Myelin's pods get other addresses, and both reach each other, on one node and on two, over
// both families.
func TestMigrateFromPtp(t *testing.T) {
	c := use(t)
	c.apply(server("first", "n1", "", ""))
	c.ready("first")
	c.usePtp("n1", following(t, c.addresses("first"), c.podCIDRs("n1")))
	ptp := "  runtimeClassName: ptp"
	c.apply(server("old1", "n1", "", ptp) + server("old2", "n1", "", ptp))
	c.ready("old1")
	c.ready("old2")
	uid := c.field("old1", ".metadata.uid")
	c.apply(server("new1", "n1", "", "") + server("new2", "n1", "", "") + server("far", "n2", "", ""))
	taken := slices.Concat(c.addresses("old1"), c.addresses("old2"))
	for _, pod := range []string{"new1", "new2", "far"} {
		c.ready(pod)
		for _, a := range c.addresses(pod) {
			if slices.Contains(taken, a) {
				t.Errorf("%s has %s, which a pod of the other network has", pod, a)
			}
		}
	}
	for _, pair := range [][2]string{{"new1", "old1"}, {"old1", "new1"}, {"far", "old1"}, {"old1", "far"},
		{"old1", "old2"}} {
		c.each(pair[1], c.within(pair[0]))
	}
	c.notRestarted("old1", uid)
}

// following are ranges of host-local's, of the four addresses after each of some, which Myelin would hand out next.
func following(t *testing.T, after []string, subnets []netip.Prefix) (ranges []string) {
	t.Helper()
	for i, text := range after {
		first, err := netip.ParseAddr(strings.Trim(text, "[]"))
		if err != nil {
			t.Fatal(err)
		}
		first = first.Next()
		last := first.Next().Next().Next()
		ranges = append(ranges, fmt.Sprintf(`[{"subnet": "%s", "rangeStart": "%s", "rangeEnd": "%s"}]`, subnets[i],
			first, last))
	}
	return ranges
}

// usePtp lets pods of the runtime class ptp on a node have the plugin of that name in the place of Myelin, with
// addresses of host-local out of ranges, of IPv4, and of IPv6 if there is a second one.
func (c *cluster) usePtp(node string, ranges []string) {
	c.t.Helper()
	routes := []string{`{"dst": "0.0.0.0/0"}`, `{"dst": "::/0"}`}[:len(ranges)]
	conflist := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "ptp", "plugins": [{"type": "ptp", "ipam": {"type": `+
		`"host-local", "ranges": [%s], "routes": [%s]}}]}`,
		strings.Join(ranges, ", "), strings.Join(routes, ", "))
	file := filepath.Join(c.t.TempDir(), "ptp.conflist")
	if err := os.WriteFile(file, []byte(conflist), 0o600); err != nil {
		c.t.Fatal(err)
	}
	// containerd made the folder, and looks there for as long as it stays
	const place = "/etc/cni/ptp.d/10-ptp.conflist"
	c.run("in-node", node, "cp", file, place)
	c.apply("{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: ptp}, handler: ptp}")
	c.t.Cleanup(func() {
		c.kubectl("delete", "pods", "--all", "--now")
		c.run("in-node", node, "rm", place)
		c.kubectl("delete", "runtimeclass", "ptp")
	})
}
