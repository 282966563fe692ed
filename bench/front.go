package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"myelin/service"
	"myelin/test/packet"
)

// front is a node that is nothing but a load balancer: clients and the backend are behind the one wire that it has, so
// that what comes in by it leaves by it, to the backend on another node and from the node's own address. The other end
// of the wire is no node: the kernel sends a player's frames from there, and what comes back is counted and lost.
//
//	┌───────── a ─────────┐   wire, MTU 1500   ┌───────── b ─────────┐
//	│ load balancer wire0 ┼────────────────────┼ wire0  player, sink │
//	└─────────────────────┘                    └─────────────────────┘
type front struct {
	kernelPath
	balancing
	family Family
	// backendCount is the number of the Service's backends; 0: one.
	backendCount int
	maglev       bool   // the Service selects backends by Maglev, otherwise at random
	index        [2]int // of wire0
	mac          [2]net.HardwareAddr
	sink         *sink
	poller       poller // of the load balancer, once it is apart
}

// balancing is the implementation that balances on a front's node.
type balancing interface {
	// begin returns when all objects, which have so many cluster IPs and ports, are balanced.
	begin(ctx context.Context, f *front, all *objects, ports int) error
	end() error
	// frames says whether what comes back is frames, by XDP.
	frames() bool
}

// External addresses, and the ports of the Service that has them.
const (
	frontUDP = 53
	frontTCP = 80
)

func (f Family) external() netip.Addr {
	if f == IPv6 {
		return netip.MustParseAddr("2001:db8:50::50")
	}
	return netip.MustParseAddr("203.0.113.50")
}

// client is the first client's address.
func (f Family) client() netip.Addr {
	if f == IPv6 {
		return netip.MustParseAddr("2001:db8:7::7")
	}
	return netip.MustParseAddr("198.51.100.7")
}

// names are those that frames are written with; unused is an address of no Service.
func (f *front) names() packet.Names {
	return packet.Names{
		"lb":     {MAC: f.mac[0], IP4: IPv4.external(), IP6: IPv6.external()},
		"client": {MAC: f.mac[1], IP4: IPv4.client(), IP6: IPv6.client()},
		"unused": {MAC: f.mac[0], IP4: netip.MustParseAddr("203.0.113.99"),
			IP6: netip.MustParseAddr("2001:db8:50::99")},
	}
}

// addFront adds a Service with an external address, and returns how many cluster IPs and ports it has.
func (o *objects) addFront(family Family, backends ...netip.Addr) (ports int) {
	list := []port{{"udp", frontUDP, corev1.ProtocolUDP}, {"tcp", frontTCP, corev1.ProtocolTCP}}
	o.add(family, "front", clusterIP(family), list, backends...)
	spec := &o.services[len(o.services)-1].Spec
	spec.ExternalIPs, spec.ExternalTrafficPolicy = []string{family.external().String()},
		corev1.ServiceExternalTrafficPolicyCluster
	return len(list)
}

// stand builds the node, and returns when its Service is balanced.
func (f *front) stand(ctx context.Context) error {
	if _, err := f.Setup(ctx, f.family); err != nil {
		return err
	}
	at := f.family.addressing()
	for i, node := range []string{"a", "b"} {
		err := inNetns(f.prefix+node, func() error {
			l, err := netlink.LinkByName("wire0")
			if err == nil {
				f.index[i], f.mac[i] = l.Attrs().Index, l.Attrs().HardwareAddr
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("wire0 of %s: %w", node, err)
		}
	}
	var err error
	if f.sink, err = newSink(f.family, f.prefix+"b", f.index[1], f.frames()); err != nil {
		return err
	}
	a := f.prefix + "a"
	err = ip(ctx,
		fmt.Sprintf("-n %s neighbour replace %s lladdr %s dev wire0 nud permanent", a, at.wire[1], f.mac[1]),
		fmt.Sprintf("-n %s %s route add default via %s", a, at.option, at.wire[1]))
	if err != nil {
		return err
	}
	// Where no XDP program is, veth takes frames only if it polls, as it does for GRO. Redirects would be sent for what
	// leaves the way it came.
	err = errors.Join(
		run(ctx, "ip", "netns", "exec", a, "sh", "-ec", "echo 1 > "+at.forwarding+
			"; for d in all wire0; do echo 0 > /proc/sys/net/ipv4/conf/$d/send_redirects; done; "+
			"ethtool -K wire0 gro on"),
		run(ctx, "ip", "netns", "exec", f.prefix+"b", "ethtool", "-K", "wire0", "gro", "on"))
	if err != nil {
		return err
	}
	all, ports := f.objects(f.backends())
	return f.begin(ctx, f, all, ports)
}

// objects are the Service with the backends, and how many cluster IPs and ports it has.
func (f *front) objects(backends []netip.Addr) (*objects, int) {
	var all objects
	ports := all.addFront(f.family, backends...)
	if f.maglev {
		all.services[0].Annotations = map[string]string{"service.cilium.io/lb-algorithm": string(service.Maglev)}
	}
	return &all, ports
}

// address is the node's own.
func (f *front) address() netip.Addr { return netip.MustParseAddr(f.family.addressing().wire[0]) }

// backends are the Service's, on another node.
func (f *front) backends() []netip.Addr {
	return addresses(netip.MustParseAddr(f.family.addressing().pod[1]), max(f.backendCount, 1))
}

func (f *front) down(ctx context.Context) error {
	err := f.end()
	if f.sink != nil {
		err = errors.Join(err, f.sink.close())
		f.sink = nil
	}
	return errors.Join(err, f.Teardown(ctx))
}

// flows are those of a player's frames: clients with consecutive addresses have equal numbers of them, each from the
// first port on.
type flows struct {
	count   int
	clients int // 0: one
	first   int // port
}

// write makes a frame for each flow to one of names. l4 is written with the client's port.
func (f *front) write(n flows, to, l4 string) ([][]byte, error) {
	var all [][]byte
	names := f.names()
	clients := addresses(f.family.client(), max(n.clients, 1))
	each, size := n.count/len(clients), 0
	for i := range n.count {
		text := fmt.Sprintf("eth client > %s | ip %s > %s ttl 64 | %s", to, clients[i/each], to,
			fmt.Sprintf(l4, n.first+i%each))
		if i == 0 { // the others are as long
			bare, err := packet.Parse(text, packet.Family(f.family), names)
			if err != nil {
				return nil, fmt.Errorf("write frame %q: %w", text, err)
			}
			size = frameSize(len(bare)) - len(bare)
		}
		whole, err := packet.Parse(fmt.Sprintf("%s | len %d", text, size), packet.Family(f.family), names)
		if err != nil {
			return nil, fmt.Errorf("write frame %q: %w", text, err)
		}
		all = append(all, whole)
	}
	return all, nil
}

// frameSize is how long a frame is that needs at least so many bytes: 64, as the shortest on a wire is with its
// checksum, or more in steps of 8.
func frameSize(least int) int { return max(64, (least+7)/8*8) }

// proxied is a front's node with the real kube-proxy.
type proxied struct{ kubeProxy }

func (p *proxied) frames() bool { return false }

func (p *proxied) begin(ctx context.Context, f *front, all *objects, ports int) error {
	return p.run(ctx, f.prefix, f.family, all, ports)
}

// mine is a front's node with our datapath: package service, the programs, and what package node would write about the
// node's one wire.
type mine struct {
	xdp        bool
	ipip       bool   // DSR by IPIP, which the backend, outside the cluster, decapsulates
	natEntries uint32 // size of the map; 0: as it is by default
	paths      uint32 // likewise
	dir        string
	balancer   *balancer
}

func (m *mine) frames() bool { return m.xdp }

func (m *mine) end() error {
	var err error
	if m.balancer != nil {
		err = m.balancer.close()
		m.balancer = nil
	}
	if m.dir != "" {
		err = errors.Join(err, os.RemoveAll(m.dir))
		m.dir = ""
	}
	return err
}
