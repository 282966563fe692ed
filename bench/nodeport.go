package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
)

//	┌─ client ─┐   wire   ┌──────── node1 ────────┐   wire   ┌──────── node2 ────────┐
//	│ outside0 ┼──────────┼ outside0         eth0 ┼──────────┼ eth0     bench/server │
//	└──────────┘          └───────────────────────┘          └───────────────────────┘

// nodePortPath is an agentPath from outside of the cluster to a node port of node1, whose only backend is the server on
// node2: a client is behind node1's address (SNAT).
type nodePortPath struct {
	agentPath
	client string // network namespace
}

// NodePort is the way from outside to a node port with SNAT and a remote backend. Binaries as for Agents.
func NodePort(binaries string) Scenario {
	values := map[string]any{"ipv6.enabled": true, "autoDirectNodeRoutes": true, "kubeProxyReplacement": true,
		"devices": "eth0 outside0", "hubble.enabled": false}
	return &nodePortPath{agentPath: agentPath{name: "nodeport-snat", binaries: binaries, values: values}}
}

// Ports of the Service on each node. The one for data is the server's own as well: netserver tells netperf its own.
const (
	controlNodePort = 31865
	dataNodePort    = 31866
)

// outsideAddresses are those of the client, and of node1 on its wire.
func (f Family) outsideAddresses() (client, node netip.Prefix) {
	if f == IPv6 {
		return netip.MustParsePrefix("2001:db8:113::1/64"), netip.MustParsePrefix("2001:db8:113::2/64")
	}
	return netip.MustParsePrefix("203.0.113.1/24"), netip.MustParsePrefix("203.0.113.2/24")
}

func (n *nodePortPath) Setup(ctx context.Context, family Family) (Path, error) {
	path, err := n.agentPath.Setup(ctx, family)
	if err != nil {
		return Path{}, err
	}
	node1 := n.lab.Node("node1")
	if err := n.plug(ctx, family, node1.NetnsName()); err != nil {
		return Path{}, fmt.Errorf("plug the client in: %w", err)
	}
	var asked objects
	asked.add(family, "netperf", clusterIP(family), []port{
		{"control", controlPort, corev1.ProtocolTCP}, {"tcp", dataNodePort, corev1.ProtocolTCP},
		{"udp", dataNodePort, corev1.ProtocolUDP},
	}, path.Listen)
	spec := &asked.services[0].Spec
	spec.Type, spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyCluster
	for i, number := range []int32{controlNodePort, dataNodePort, dataNodePort} {
		spec.Ports[i].NodePort = number
	}
	service := filepath.Join(n.dir, "service.json")
	err = asked.write(service)
	if err == nil {
		err = n.lab.Apply(ctx, service, false)
	}
	if err != nil {
		return Path{}, fmt.Errorf("add the Service: %w", err)
	}
	for _, addr := range node1.Addrs() {
		if addr.Is4() == (family == IPv4) {
			path.Target = addr
		}
	}
	path.Client, path.Port, path.Control = Place{Netns: n.client}, dataNodePort, controlNodePort
	const frontends = 6 // of the ports at the ClusterIP, and at any address of a node
	return path, known(ctx, node1, frontends)
}

// plug joins the client to node1 by a wire of its own.
func (n *nodePortPath) plug(ctx context.Context, family Family, node string) error {
	n.client = fmt.Sprintf("mybench-%d-%s%s-client", os.Getpid(), n.name, family.suffix())
	if err := ip(ctx, "netns add "+n.client); err != nil {
		n.client = ""
		return err
	}
	client, gateway := family.outsideAddresses()
	at := family.addressing()
	return ip(ctx,
		fmt.Sprintf("link add outside0 netns %s type veth peer name outside0 netns %s", n.client, node),
		fmt.Sprintf("-n %s address add %s dev outside0 %s", n.client, client, nodad(at)),
		fmt.Sprintf("-n %s address add %s dev outside0 %s", node, gateway, nodad(at)),
		fmt.Sprintf("-n %s link set lo up", n.client),
		fmt.Sprintf("-n %s link set outside0 up", n.client),
		fmt.Sprintf("-n %s link set outside0 up", node),
		fmt.Sprintf("-n %s %s route add default via %s", n.client, at.option, gateway.Addr()))
}

func (n *nodePortPath) Teardown(ctx context.Context) error {
	err := n.agentPath.Teardown(ctx)
	if n.client != "" {
		err = errors.Join(err, ip(ctx, "netns delete "+n.client))
		n.client = ""
	}
	return err
}
