package kube

import (
	"strings"
	"testing"
)

// objects are what the server has: path and YAML.
func objects() [][2]string {
	return [][2]string{
		{"/api/v1/nodes/node1", "apiVersion: v1\nkind: Node\nmetadata: {name: node1}\nspec: {podCIDR: 10.0.1.0/24, " +
			"podCIDRs: [10.0.1.0/24, 'fd00:1::/64']}"},
		{"/api/v1/namespaces/default/services/web",
			"apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.80, ports: [{port: 80}]}"},
		{"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-1",
			"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n" +
				"metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nendpoints: " +
				"[{addresses: [10.0.2.9], conditions: {ready: true}}]\nports: [{port: 8080}]"},
	}
}

// fill gives the server the objects, and the node its addresses.
func (n *node) fill() {
	n.Helper()
	for _, o := range objects() {
		n.server.Apply(o[0], []byte(o[1]))
	}
	n.server.Merge("/api/v1/nodes/node1/status",
		[]byte(`{"status": {"addresses": [{"type": "InternalIP", "address": "172.16.0.1"}, {"type": "InternalIP", `+
			`"address": "2001:db8::1"}]}}`))
}

// TestAgent: an agent whose source is an API server. Without the server it goes
// on, what it has programmed stays through kill -9 and a start without the
// server, and it catches up when the server is back.
//
//	┌─ network and mount namespace ──────────────────┐
//	│ etcd ◄── kube-apiserver ◄── myelin agent       │
//	│          127.0.0.1          eth0 172.16.0.1/16 │
//	└────────────────────────────────────────────────┘
func TestAgent(t *testing.T) {
	if !inside(t) {
		return
	}
	n := newNode(t, "")
	n.fill()
	n.refusesToStart("neither myelin.manifests nor an API server: kubeConfigPath is not set")
	n.start()
	n.says("synced", "Kubernetes")
	services := n.services()
	if !strings.Contains(services, "10.96.0.80:80/TCP") || !strings.Contains(services, "10.0.2.9:8080") {
		t.Fatalf("Services are\n%s", services)
	}
	n.measures("myelin_kubernetes_up 1", "myelin_kubernetes_synced 1", `myelin_kubernetes_objects{kind="Service"} 2`)
	before := n.frontends()
	t.Logf("measured: RSS of the agent %d kB", n.memory("VmRSS"))

	n.server.Kill()
	n.says("no answer for", "what was known stays in force")
	if now := n.services(); now != services {
		t.Errorf("without the server Services became\n%s\nwere\n%s", now, services)
	}
	n.kill()
	n.launch()
	n.says("can't be reached")
	n.measures("myelin_kubernetes_up 0", "myelin_kubernetes_synced 0")
	if now := n.frontends(); now != before || before == 0 {
		t.Errorf("%d frontends in the kernel after a start without the server, want %d", now, before)
	}
	n.server.Resume()
	n.ready()
	n.says("synced", "heard of 0s ago")
	if now := n.services(); now != services {
		t.Errorf("with the server again Services became\n%s\nwere\n%s", now, services)
	}
	if now := n.frontends(); now != before {
		t.Errorf("%d frontends in the kernel, want %d", now, before)
	}
}
