package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"myelin/test/kube/apiserver"
)

// poolConfig has the operator give podCIDRs.
const poolConfig = "ipam: {mode: cluster-pool, operator: {clusterPoolIPv4PodCIDRList: 10.7.0.0/16, " +
	"clusterPoolIPv6PodCIDRList: 'fd00:7::/104'}}\n"

// TestOperator: two operators of which one leads; it is killed, and the other follows. An agent gets its
// podCIDRs of them, and needs none of them afterwards.
//
//	┌─ network and mount namespace ───────────────────────┐
//	│ etcd ◄── kube-apiserver ◄── myelin operator, twice  │
//	│          127.0.0.1      ◄── myelin agent            │
//	│                             eth0 172.16.0.1/16      │
//	└─────────────────────────────────────────────────────┘
func TestOperator(t *testing.T) {
	if !inside(t) {
		return
	}
	n := newNode(t, poolConfig)
	n.fill()
	n.server.Grant(apiserver.Operator, "../../operator/role.yaml")
	n.launch()
	n.says("CiliumNode node1 has no podCIDRs yet, or there is none")
	a, b := n.operator(9301), n.operator(9302)
	n.ready()
	n.says("10.7.0.0/24")
	n.Logf("measured: ready %s after its start, without operators for the first part of it",
		time.Since(n.began).Round(time.Millisecond))
	n.server.Apply("/apis/cilium.io/v2/namespaces/default/ciliumnetworkpolicies/p",
		[]byte("apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: p}\nspec: {endpointSelector: "+
			"{}, ingress: [{}]}"))
	n.until("the policy is realised", func() bool {
		return strings.Contains(string(n.server.Get("/apis/cilium.io/v2/namespaces/default/ciliumnetworkpolicies/p")),
			`"nodes":1,"revision"`)
	})

	leader, other := a, b
	if !leader.leads() {
		leader, other = b, a
	}
	if !leader.leads() || other.leads() {
		t.Fatalf("%t and %t lead", a.leads(), b.leads())
	}
	begin := time.Now()
	leader.stop(syscall.SIGKILL)
	n.served("node2", `"10.7.1.0/24"`)
	took := time.Since(begin)
	t.Logf("measured: killed, the other did the leader's work after %s", took.Round(time.Millisecond))
	if took > 20*time.Second {
		t.Error("that is too long")
	}
	leader, other = other, n.operator(9303)
	time.Sleep(3 * time.Second) // until it has asked
	begin = time.Now()
	leader.stop(syscall.SIGTERM)
	n.served("node3", `"10.7.2.0/24"`)
	took = time.Since(begin)
	t.Logf("measured: ended, the other did the leader's work after %s", took.Round(time.Millisecond))
	if took > 6*time.Second {
		t.Error("that is too long: the lease was not given back")
	}

	other.stop(syscall.SIGKILL)
	n.kill()
	n.launch()
	n.ready()
	n.says("10.7.0.0/24")
}

// until waits until f is true.
func (n *node) until(what string, f func() bool) {
	n.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.Fatalf("not after %s: %s\n%s", patience, what, n.log)
		}
	}
}

// served makes a Node, and waits until it has podCIDRs.
func (n *node) served(name, cidr string) {
	n.Helper()
	n.server.Apply("/api/v1/nodes/"+name, []byte("apiVersion: v1\nkind: Node\nmetadata: {name: "+name+"}"))
	n.until(name+" has "+cidr, func() bool {
		_, body := n.server.Try(http.MethodGet, "/apis/cilium.io/v2/ciliumnodes/"+name, "", nil)
		return strings.Contains(string(body), cidr)
	})
}

// operatorProcess is an operator in a process of its own.
type operatorProcess struct {
	*node

	cmd  *exec.Cmd
	port int
}

func (n *node) operator(port int) *operatorProcess {
	n.Helper()
	o := &operatorProcess{node: n, port: port}
	o.cmd = exec.CommandContext(context.Background(), filepath.Join(n.bin, "myelin"), "operator", "--config",
		n.file("agent.yaml"),
		"--kubeconfig", n.server.KubeConfig(apiserver.Operator), "--listen", fmt.Sprintf("127.0.0.1:%d", port))
	o.cmd.Stdout, o.cmd.Stderr = n.log, n.log
	if err := o.cmd.Start(); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { o.stop(syscall.SIGKILL) })
	return o
}

// stop ends it, if it has not ended.
func (o *operatorProcess) stop(by syscall.Signal) {
	if o.cmd != nil {
		_ = o.cmd.Process.Signal(by) // it may have ended
		_ = o.cmd.Wait()
		o.cmd = nil
	}
}

// leads asks /healthz.
func (o *operatorProcess) leads() bool {
	o.Helper()
	var body struct{ Leading bool }
	if err := json.Unmarshal(fetch(o.T, fmt.Sprintf("http://127.0.0.1:%d/healthz", o.port)), &body); err != nil {
		o.Fatal(err)
	}
	return body.Leading
}
