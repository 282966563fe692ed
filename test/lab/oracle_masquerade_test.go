package labtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"myelin/bpf"
)

// denyAll forbids a pod of an arena to be reached, or to reach anything.
func denyAll(pod string) string {
	return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n" +
		"metadata: {name: deny-" + pod + ", namespace: default}\n" +
		"spec:\n  podSelector: {matchLabels: {name: " + pod + "}}\n  policyTypes: [Ingress, Egress]\n"
}

// exchange is a masqueraded UDP flow between a place and the world.
type exchange struct {
	pod, world *net.UDPConn
	node       netip.AddrPort // what the world sees
}

// masqueraded opens a flow from a pod to the world.
func (a *arena) masqueraded(t *testing.T, pod end, f int) *exchange {
	t.Helper()
	world := a.end("world")
	server, err := world.listenUDP(t.Context(), at(world.addr(f), 0))
	check(t, err)
	t.Cleanup(func() { server.Close() })
	client, err := pod.dialUDP(t.Context(), netip.AddrPort{}, addrPort(server.LocalAddr()))
	check(t, err)
	t.Cleanup(func() { client.Close() })
	x := &exchange{pod: client, world: server}
	eventually(t, "a pod reaches the world", 5*time.Second, func() error {
		buf := make([]byte, 64)
		if _, err := client.Write([]byte("hello")); err != nil {
			return err
		}
		check(t, server.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
		_, from, err := server.ReadFromUDPAddrPort(buf)
		x.node = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		return err
	})
	if x.node.Addr() == pod.addr(f) {
		t.Fatalf("the world sees the pod as %s", x.node)
	}
	return x
}

// drain counts what is waiting at a socket.
func drain(c *net.UDPConn) (n int) {
	time.Sleep(patience(50 * time.Millisecond))
	return countReads(c, nil, make([]byte, 2048))
}

// TestOracleMasqueraded has policies, pods and time end what a masqueraded flow began.
//
//	┌─ node1 ──────┐
//	│ open1 · next │ ◄──► world
//	└──────────────┘
func TestOracleMasqueraded(t *testing.T) {
	for _, m := range policyModes() {
		t.Run("A6-policy-changes/"+m.name, func(t *testing.T) {
			t.Parallel()
			a := upArena(t, setup{mode: m})
			for _, f := range a.stack.families {
				a.policyEndsMasquerade(t, f)
			}
		})
		t.Run("A6-pod-goes/"+m.name, func(t *testing.T) {
			t.Parallel()
			upSmall(t, m).podEndsMasquerade(t)
		})
		t.Run("A6-row-expires/"+m.name, func(t *testing.T) {
			t.Parallel()
			a := upArena(t, setup{mode: m})
			for _, f := range a.stack.families {
				a.timeEndsMasquerade(t, f)
			}
		})
	}
}

// policyEndsMasquerade forbids a pod whatever it does, and counts what still arrives at either end.
func (a *arena) policyEndsMasquerade(t *testing.T, f int) {
	t.Helper()
	x := a.masqueraded(t, a.end("open1"), f)
	tcp := a.masqueradedTCP(t, f)
	_, err := x.world.WriteToUDPAddrPort([]byte("answer"), x.node)
	check(t, err)
	check(t, x.pod.SetReadDeadline(time.Now().Add(patience(2*time.Second))))
	if _, err := x.pod.Read(make([]byte, 64)); err != nil {
		t.Errorf("IPv%d: the answer before the policy: %v", f, err)
	}
	file := a.enforce(t, denyAll("open1"))
	drain(x.world)
	for range 60 {
		if _, err := x.pod.Write([]byte("on")); err != nil && !errors.Is(err, os.ErrPermission) {
			t.Logf("write: %v", err)
		}
		_, err := x.world.WriteToUDPAddrPort([]byte("back"), x.node)
		check(t, err)
		time.Sleep(time.Millisecond)
	}
	if n := drain(x.world); n > 0 {
		t.Errorf("IPv%d: %d of 60 datagrams reach the world after deny-all", f, n)
	}
	if n := drain(x.pod); n > 0 {
		t.Errorf("IPv%d: %d of 60 datagrams reach the pod after deny-all", f, n)
	}
	if err := tcp.exchange(patience(time.Second)); err == nil {
		t.Errorf("IPv%d: a masqueraded connection goes on after deny-all", f)
	}
	check(t, a.Delete(t.Context(), file))
	a.pass(t)
}

// masqueradedTCP opens a connection from open1 to the world.
func (a *arena) masqueradedTCP(t *testing.T, f int) connection {
	t.Helper()
	world := a.end("world")
	client, server, err := connect(t.Context(), a.end("open1"), world, netip.AddrPort{}, at(world.addr(f), 0))
	check(t, err)
	t.Cleanup(func() { client.Close(); server.Close() })
	c := connection{name: "masqueraded", client: client, server: server}
	check(t, c.exchange(patience(time.Second)))
	return c
}

// upSmall brings an arena up whose first node has few addresses for pods, and where pods of the namespace churn are
// isolated.
func upSmall(t *testing.T, m mode) *arena {
	t.Helper()
	s := setup{mode: m, nodes: 1, pods: []string{}}
	s.fill()
	small := strings.NewReplacer("10.0.1.0/24", "10.0.1.0/29", "fd00:10:0:1::/64", "fd00:10:0:1::/125")
	s.yaml = small.Replace(s.manifests()) +
		"---\napiVersion: v1\nkind: Namespace\nmetadata: {name: churn}\n" + barriers()
	return &arena{policed: &policed{cluster: up(t, s)}}
}

// podEndsMasquerade deletes a pod with flows to the world, and gives its address to one that nothing may reach.
func (a *arena) podEndsMasquerade(t *testing.T) {
	t.Helper()
	r := a.runtime("node1")
	first := r.start(t, 1)[0]
	var flows []*exchange
	for _, f := range a.stack.families {
		flows = append(flows, a.masqueraded(t, first.end(), f))
	}
	a.enforce(t, "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: alone, namespace: churn}\n"+
		"spec: {podSelector: {matchLabels: {alone: \"yes\"}}, policyTypes: [Ingress, Egress]}\n")
	check(t, r.del(t.Context(), first))
	check(t, first.remove())
	for i, f := range a.stack.families {
		ear := a.heir(t, r, first.end().addr(f), f)
		for range 10 {
			_, err := flows[i].world.WriteToUDPAddrPort([]byte(floodText), flows[i].node)
			check(t, err)
		}
		time.Sleep(patience(50 * time.Millisecond))
		if n := ear.floodFrames(); n > 0 {
			t.Errorf("IPv%d: %d of 10 datagrams for the pod before reach the next one of its address", f, n)
		}
	}
}

// heir adds pods until one has an address that another had, and returns what it hears.
func (a *arena) heir(t *testing.T, r *runtimeOf, addr netip.Addr, f int) *ear {
	t.Helper()
	for i := range 20 {
		s, err := r.create(100*f + i)
		check(t, err)
		t.Cleanup(func() { check(t, s.remove()) })
		ear := overhear(t, s.end())
		check(t, replaceFile(filepath.Join(a.Manifests(), "status", "churn_"+s.name+".yaml"), podObject(s.name)))
		a.pass(t)
		check(t, r.add(t.Context(), s))
		if slices.Contains(s.addrs, addr) {
			out := a.mustCLI("node1", "table", "show", "endpoint-policies", "-f", "Pod=churn/"+s.name)
			contains(t, "endpoint-policies", out, "done")
			t.Cleanup(func() { check(t, r.del(context.Background(), s)) })
			return ear
		}
		check(t, r.del(t.Context(), s))
	}
	t.Fatalf("no pod gets %v again", addr)
	return nil
}

// timeEndsMasquerade makes the rows of a flow old while no agent is there to collect them: nothing more comes in by
// them.
func (a *arena) timeEndsMasquerade(t *testing.T, f int) {
	t.Helper()
	x := a.masqueraded(t, a.end("open1"), f)
	check(t, a.Node("node1").KillAgent(t.Context()))
	a.age(t, "node1", 600*time.Second)
	for range 10 {
		_, err := x.world.WriteToUDPAddrPort([]byte("late"), x.node)
		check(t, err)
	}
	if n := drain(x.pod); n > 0 {
		t.Errorf("IPv%d: %d of 10 datagrams come in by a row that is over", f, n)
	}
	check(t, a.Node("node1").StartAgent(t.Context(), nil))
}

// age makes all rows of flows of a node that much older. The clock has at most 1,000 ticks a second.
func (a *arena) age(t *testing.T, node string, by time.Duration) {
	t.Helper()
	m := a.pinnedMap(node, "flows")
	defer m.Close()
	var key bpf.DatapathFlowKey
	var row bpf.DatapathFlow
	rows := map[bpf.DatapathFlowKey]bpf.DatapathFlow{}
	for each := m.Iterate(); each.Next(&key, &row); {
		rows[key] = row
	}
	if len(rows) == 0 {
		t.Fatal(fmt.Errorf("no flow has a row"))
	}
	for key, row := range rows {
		row.Seen -= uint32(by.Seconds() * 1000)
		check(t, m.Update(&key, &row, ebpf.UpdateExist))
	}
}
