package labtest

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"myelin/bpf"
	"myelin/test/packet"
)

// arena is a cluster in which attackers send frames that they make up, and others must not hear of them.
//
//	┌─ node1 ──────────────────────┐  ┌─ node2 ─────────────────────┐
//	│ vic1   ingress: role=friend  │  │                             │
//	│ jail1  egress: role=server   │  │ srv2   role=server          │
//	│ fr1    role=friend           │  │ fr2    role=friend          │
//	│ att1 open1   no policy       │  │ att2 open2   no policy      │
//	└──────────────┬───────────────┘  └──────────────┬──────────────┘
//	═══════════════╧═════════════════════════════════╧═══ world
type arena struct {
	*policed
	names packet.Names
	shots int
}

// arenaPods are the pods of an arena, with their roles.
func arenaPods() [][2]string {
	return [][2]string{
		{"vic1", "victim"}, {"jail1", "jailed"}, {"fr1", "friend"}, {"att1", "none"}, {"open1", "none"},
		{"srv2", "server"}, {"fr2", "friend"}, {"att2", "none"}, {"open2", "none"},
	}
}

// arenaPolicies isolate the victim and the jailed pod.
func arenaPolicies() []string {
	const kind = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n"
	return []string{
		kind + "metadata: {name: victim, namespace: default}\nspec:\n  podSelector: {matchLabels: {role: victim}}\n" +
			"  ingress: [{from: [{podSelector: {matchLabels: {role: friend}}}]}]\n",
		kind + "metadata: {name: jailed, namespace: default}\nspec:\n  podSelector: {matchLabels: {role: jailed}}\n" +
			"  policyTypes: [Egress]\n  egress: [{to: [{podSelector: {matchLabels: {role: server}}}]}]\n",
	}
}

// hostPolicy lets nodes be reached by nodes alone, on all ports but one that is open to all.
func hostPolicy() string {
	return "apiVersion: cilium.io/v2\nkind: CiliumClusterwideNetworkPolicy\nmetadata: {name: hosts}\nspec:\n" +
		"  nodeSelector: {}\n  ingress:\n  - {fromEntities: [remote-node]}\n" +
		"  - {toPorts: [{ports: [{port: \"179\", protocol: TCP}]}]}\n"
}

// upArena brings an arena up, with its policies in force.
func upArena(t *testing.T, s setup, policies ...string) *arena {
	t.Helper()
	s.nodes, s.pods = 2, []string{}
	s.fill()
	yaml := s.manifests()
	for _, pod := range arenaPods() {
		node := int(pod[0][len(pod[0])-1] - '0')
		labels := fmt.Sprintf("metadata: {name: %s, labels: {name: %s, role: %s}}", pod[0], pod[0], pod[1])
		yaml += "---\n" + strings.Replace(podYAML(pod[0], node), fmt.Sprintf("metadata: {name: %s}", pod[0]), labels, 1)
	}
	s.yaml = yaml + barriers()
	a := &arena{policed: &policed{cluster: up(t, s)}}
	a.names = a.everyName()
	a.enforce(t, append(arenaPolicies(), policies...)...)
	return a
}

// everyName has each place under its own name; gw-POD is the pod's gateway.
func (a *arena) everyName() packet.Names {
	a.t.Helper()
	ip := netip.MustParseAddr
	names := packet.Names{
		"stranger": {MAC: net.HardwareAddr{2, 0x66, 0, 0, 0, 1}, IP4: ip("172.16.9.9"), IP6: ip("fd00:dead::9")},
		"gw1":      {IP4: gateway(1, 4), IP6: gateway(1, 6)},
		"gw2":      {IP4: gateway(2, 4), IP6: gateway(2, 6)},
	}
	for _, place := range []string{"node1", "node2", "world"} {
		e := a.end(place)
		names[place] = packet.Name{MAC: a.mac(e), IP4: e.addr(4), IP6: e.addr(6)}
	}
	for _, pod := range arenaPods() {
		e := a.end(pod[0])
		names[pod[0]] = packet.Name{MAC: a.mac(e), IP4: e.addr(4), IP6: e.addr(6)}
		node := string(pod[0][len(pod[0])-1])
		gw := names["gw"+node]
		gw.MAC = a.linkMAC("node"+node, e)
		names["gw-"+pod[0]] = gw
	}
	return names
}

// mac is the hardware address of a place's eth0.
func (a *arena) mac(e end) (mac net.HardwareAddr) {
	a.t.Helper()
	check(a.t, e.Do(func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = eth0.HardwareAddr
		}
		return err
	}))
	return mac
}

// linkMAC is the hardware address that a pod has for its gateway.
func (a *arena) linkMAC(node string, e end) net.HardwareAddr {
	a.t.Helper()
	m := a.pinnedMap(node, "endpoints")
	defer m.Close()
	var row bpf.DatapathEndpoint
	check(a.t, m.Lookup(bpf.Addr(e.addrs[0]), &row))
	return row.LinkMac.B[:]
}
