package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"myelin/bpf"
	"myelin/endpoint"
)

// join makes a loaded datapath that of the node with the number, of a kernelPath with pods: it writes what packages
// endpoint and node would, and attaches the programs as they do. They are taken off with their pins.
func (k *kernelPath) join(ctx context.Context, d *bpf.Datapath, at addressing, i int) error {
	host := k.prefix + []string{"a", "b"}[i]
	pod, wire := netip.MustParseAddr(at.pod[i]), netip.MustParseAddr(at.wire[i])
	podMAC, _, err1 := device(host+"p", "eth0")
	linkMAC, link, err2 := device(host, "pod0")
	_, index, err3 := device(host, "wire0")
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	row := bpf.DatapathEndpoint{Ifindex: uint32(link), Slot: podSlot, PodMac: bpf.MAC(podMAC),
		LinkMac: bpf.MAC(linkMAC)}
	own := bpf.DatapathPodLink{Endpoint: row, Addr4: bpf.Addr(pod)}
	if pod.Is6() {
		own.Addr4, own.Addr6 = own.Addr6, own.Addr4
	}
	err := errors.Join(
		d.Endpoints.Put(bpf.Addr(pod), row), d.PodLinks.Put(uint32(link), own),
		d.Endpoints.Put(bpf.Addr(wire), bpf.DatapathEndpoint{Slot: endpoint.HostID,
			Flags: uint8(bpf.DatapathEndpointFlagENDPOINT_HOST)}),
		d.Wires.Put(uint32(index), bpf.DatapathWire{Mtu: 1500}),
		(&bpf.Epochs{Map: d.Epochs}).Bump(0),
		gatewayIs(ctx, at, host, linkMAC))
	if err != nil {
		return err
	}
	return inNetns(host, func() error {
		return errors.Join(d.Attacher.Attach(bpf.FromPod, "pod0", link), d.Attacher.Attach(bpf.ToPod, "pod0", link),
			d.Attacher.Attach(bpf.FromWire, "wire0", index))
	})
}

// gatewayIs gives a pod a permanent neighbour entry for its gateway, so that it sends no ARP requests.
func gatewayIs(ctx context.Context, at addressing, host string, mac net.HardwareAddr) error {
	return ip(ctx, fmt.Sprintf("-n %sp %s neighbour replace %s lladdr %s dev eth0 nud permanent", host, at.option,
		at.dflt, mac))
}

// withGateway are settings of a datapath whose pods have the family's gateway.
func (at addressing) withGateway(s bpf.Settings) bpf.Settings {
	gateway := netip.MustParseAddr(at.dflt)
	if gateway.Is6() {
		s.Gateway6 = bpf.Addr(gateway)
	} else {
		s.Gateway4 = bpf.Addr(gateway)
	}
	return s
}

// device is an interface's MAC and index.
func device(netns, name string) (mac net.HardwareAddr, index int, err error) {
	err = inNetns(netns, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s in %s: %w", name, netns, err)
		}
		mac, index = l.Attrs().HardwareAddr, l.Attrs().Index
		return nil
	})
	return mac, index, err
}
