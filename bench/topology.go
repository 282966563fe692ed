package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"myelin/endpoint/podlink"
)

//	┌────────── a ──────────┐        wire         ┌────────── b ──────────┐
//	│                wire0 ─┼─────────────────────┼─ wire0                │
//	│ pod0                  │                     │                  pod0 │
//	└──┼────────────────────┘                     └────────────────────┼──┘
//	   └─ eth0 in ap                                       eth0 in bp ─┘

// kernelPath is a Scenario that needs nothing but the kernel: bare nodes, or pods behind nodes that route.
type kernelPath struct {
	name   string
	pods   bool
	kind   podlink.Kind // of the pods' links; empty is veth
	mtu    int          // of the wire; 0 is 1500
	prefix string
	made   []string
}

// Node is node→node: the baseline.
func Node() Scenario { return &kernelPath{name: "node"} }

// Plain is pod→pod through the kernel's routing, on veth, without a single firewall rule.
func Plain() Scenario { return &kernelPath{name: "plain", pods: true} }

func (k *kernelPath) Name() string { return k.name }

// addressing is how one family is numbered on the topology.
type addressing struct {
	bits             int
	option           string
	wire, pod        [2]string
	forwarding, dflt string
}

func (f Family) addressing() addressing {
	if f == IPv6 {
		return addressing{128, "-6", [2]string{"fd00:192::1", "fd00:192::2"}, [2]string{"fd00:10:1::2", "fd00:10:2::2"},
			"/proc/sys/net/ipv6/conf/all/forwarding", "fe80::1"}
	}
	return addressing{32, "-4", [2]string{"192.0.2.1", "192.0.2.2"}, [2]string{"10.1.0.2", "10.2.0.2"},
		"/proc/sys/net/ipv4/ip_forward", "169.254.1.1"}
}

func (k *kernelPath) Setup(ctx context.Context, family Family) (Path, error) {
	k.prefix = fmt.Sprintf("mybench-%d-%s%s-", os.Getpid(), k.name, family.suffix())
	at := family.addressing()
	if err := k.namespaces(ctx, "a", "b"); err != nil {
		return Path{}, err
	}
	if err := k.wire(ctx, at); err != nil {
		return Path{}, err
	}
	if !k.pods {
		return k.path("a", "b", at.wire[1])
	}
	if err := k.namespaces(ctx, "ap", "bp"); err != nil {
		return Path{}, err
	}
	for i, node := range []string{"a", "b"} {
		if err := errors.Join(k.pod(ctx, at, i, node), k.forward(ctx, at, i, node)); err != nil {
			return Path{}, err
		}
	}
	return k.path("ap", "bp", at.pod[1])
}

func (k *kernelPath) path(client, server, target string) (Path, error) {
	addr, err := netip.ParseAddr(target)
	return Path{Client: Place{Netns: k.prefix + client}, Server: Place{Netns: k.prefix + server}, Target: addr,
		Listen: addr, ClientNode: k.prefix + "a", ServerNode: k.prefix + "b"}, err
}

func (k *kernelPath) namespaces(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := ip(ctx, "netns add "+k.prefix+name); err != nil {
			return err
		}
		k.made = append(k.made, k.prefix+name)
		if err := ip(ctx, "-n "+k.prefix+name+" link set lo up"); err != nil {
			return err
		}
	}
	return nil
}

func (k *kernelPath) wire(ctx context.Context, at addressing) error {
	a, b := k.prefix+"a", k.prefix+"b"
	mtu := cmp.Or(k.mtu, 1500)
	commands := []string{fmt.Sprintf("link add wire0 mtu %d netns %s type veth peer name wire0 mtu %d netns %s", mtu, a,
		mtu, b)}
	for i, node := range []string{a, b} {
		commands = append(commands,
			fmt.Sprintf("-n %s address add %s/%d dev wire0 %s", node, at.wire[i], at.bits-8, nodad(at)),
			fmt.Sprintf("-n %s link set wire0 up", node))
	}
	return ip(ctx, commands...)
}

func (k *kernelPath) pod(ctx context.Context, at addressing, i int, node string) error {
	host, pod := k.prefix+node, k.prefix+node+"p"
	if err := k.link(ctx, host, pod); err != nil {
		return err
	}
	return ip(ctx,
		fmt.Sprintf("-n %s address add %s/%d dev eth0 %s", pod, at.pod[i], at.bits, nodad(at)),
		fmt.Sprintf("-n %s address add %s/%d dev pod0 %s", host, at.dflt, at.bits, nodad(at)),
		fmt.Sprintf("-n %s link set pod0 up", host),
		fmt.Sprintf("-n %s link set eth0 up", pod),
		fmt.Sprintf("-n %s route add %s/%d dev pod0", host, at.pod[i], at.bits),
		fmt.Sprintf("-n %s %s route add default via %s dev eth0 onlink", pod, at.option, at.dflt))
}

// forward has a node route packets to the other one's pod by the wire.
func (k *kernelPath) forward(ctx context.Context, at addressing, i int, node string) error {
	host := k.prefix + node
	err := ip(ctx, fmt.Sprintf("-n %s route add %s/%d via %s", host, at.pod[1-i], at.bits, at.wire[1-i]))
	if err != nil {
		return err
	}
	return run(ctx, "ip", "netns", "exec", host, "sh", "-c", "echo 1 > "+at.forwarding)
}

// link makes the pair of a pod, whose netkit devices let all pass that no program looks at.
func (k *kernelPath) link(ctx context.Context, host, pod string) error {
	if !k.kind.IsNetkit() {
		return ip(ctx, fmt.Sprintf("link add pod0 netns %s type veth peer name eth0 netns %s", host, pod))
	}
	inside, err := ns.GetNS("/run/netns/" + pod)
	if err != nil {
		return err
	}
	defer inside.Close()
	attrs, peer := netlink.NewLinkAttrs(), netlink.NewLinkAttrs()
	attrs.Name, peer.Name, peer.Namespace = "pod0", "eth0", netlink.NsFd(int(inside.Fd()))
	pair := &netlink.Netkit{LinkAttrs: attrs, Mode: netlink.NETKIT_MODE_L3, Scrub: netlink.NETKIT_SCRUB_NONE,
		PeerScrub: netlink.NETKIT_SCRUB_DEFAULT}
	if k.kind == podlink.NetkitL2 {
		pair.Mode = netlink.NETKIT_MODE_L2
	}
	pair.SetPeerAttrs(&peer)
	return inNetns(host, func() error { return netlink.LinkAdd(pair) })
}

func nodad(at addressing) string {
	if at.bits == 128 {
		return "nodad"
	}
	return ""
}

func (k *kernelPath) Teardown(ctx context.Context) error {
	var failed []error
	for _, name := range k.made {
		failed = append(failed, ip(ctx, "netns delete "+name))
	}
	k.made = nil
	return errors.Join(failed...)
}

// ip runs commands of iproute2, each given as its arguments in one string.
func ip(ctx context.Context, commands ...string) error {
	for _, command := range commands {
		if err := run(ctx, "ip", strings.Fields(command)...); err != nil {
			return err
		}
	}
	return nil
}

func run(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
