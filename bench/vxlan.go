package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/cilium/ebpf/asm"
)

// vxlanRedirect is redirectPath through the kernel's VXLAN device: what a pod sends goes into the device, what that
// brings into the pod, unread and unchanged. No datapath that uses the device can be faster.
type vxlanRedirect struct {
	redirectPath
	external bool
}

// VXLANRedirects are pod→pod by two redirects and a VXLAN device of the kernel: one that knows the other node, which is
// the least that a packet costs, and one as agents have it (external), for which programs set the other node's address.
func VXLANRedirects() []Scenario {
	named := func(name string) redirectPath { return redirectPath{kernelPath: kernelPath{name: name, pods: true}} }
	return []Scenario{
		&vxlanRedirect{redirectPath: named("vxlan-redirect")},
		&vxlanRedirect{redirectPath: named("vxlan-redirect-external"), external: true},
	}
}

// Those of the devices. The overhead is that of IPv4 outside, which agents have by default.
const (
	vxlanDevice   = "vxlan0"
	vxlanID       = 1
	vxlanPort     = 8472
	vxlanOverhead = 20 + 8 + 8 + 14
)

func (v *vxlanRedirect) Setup(ctx context.Context, family Family) (Path, error) {
	v.prefix = fmt.Sprintf("mybench-%d-%s%s-", os.Getpid(), v.name, family.suffix())
	at := family.addressing()
	if err := v.namespaces(ctx, "a", "b", "ap", "bp"); err != nil {
		return Path{}, err
	}
	if err := v.wire(ctx, IPv4.addressing()); err != nil {
		return Path{}, err
	}
	for i, node := range []string{"a", "b"} {
		if err := errors.Join(v.pod(ctx, at, i, node), v.tunnel(ctx, i, node)); err != nil {
			return Path{}, err
		}
	}
	for i, node := range []string{"a", "b"} {
		if err := v.hang(ctx, at, i, node); err != nil {
			return Path{}, fmt.Errorf("redirect on node %s: %w", node, err)
		}
	}
	return v.path("ap", "bp", at.pod[1])
}

// tunnel makes a node's device, which learns nothing, and has the pod's packets fit into it.
func (v *vxlanRedirect) tunnel(ctx context.Context, i int, node string) error {
	host, wires, mtu := v.prefix+node, IPv4.addressing().wire, 1500-vxlanOverhead
	kind := fmt.Sprintf("id %d dev wire0 local %s remote %s", vxlanID, wires[i], wires[1-i])
	if v.external {
		kind = "external"
	}
	return ip(ctx,
		fmt.Sprintf("-n %s link add %s mtu %d type vxlan %s dstport %d nolearning", host, vxlanDevice, mtu, kind,
			vxlanPort),
		fmt.Sprintf("-n %s link set %s addrgenmode none", host, vxlanDevice),
		fmt.Sprintf("-n %s link set %s up", host, vxlanDevice),
		fmt.Sprintf("-n %s link set pod0 mtu %d", host, mtu),
		fmt.Sprintf("-n %sp link set eth0 mtu %d", host, mtu))
}

// hang attaches the programs. Pods address their frames to the other node's device, since no node on the way writes
// them anew.
func (v *vxlanRedirect) hang(ctx context.Context, at addressing, i int, node string) error {
	host, other := v.prefix+node, v.prefix+[]string{"b", "a"}[i]
	mac, _, err1 := device(other, vxlanDevice)
	_, pod, err2 := device(host, "pod0")
	_, vxlan, err3 := device(host, vxlanDevice)
	if err := errors.Join(err1, err2, err3, gatewayIs(ctx, at, host, mac)); err != nil {
		return err
	}
	send := redirect(asm.FnRedirect, vxlan)
	if v.external {
		send = append(tunnelKey(net.ParseIP(IPv4.addressing().wire[1-i])), send...)
	}
	return inNetns(host, func() error {
		return errors.Join(v.attach(pod, send, false), v.attach(vxlan, redirect(asm.FnRedirectPeer, pod), false))
	})
}

// tunnelKey sets the node that a packet is sent to, as the datapath does, and drops the packet where that fails.
func tunnelKey(node net.IP) asm.Instructions {
	// struct bpf_tunnel_key of linux/bpf.h, as far as kernels before 6.0 know it
	const size, id, remote, ttl, zeroChecksum = 28, 0, 4, 21, 1 << 1
	const pass = "pass"
	key := make([]byte, size)
	binary.NativeEndian.PutUint32(key[id:], vxlanID)
	binary.NativeEndian.PutUint32(key[remote:], binary.BigEndian.Uint32(node.To4()))
	key[ttl] = 64
	all := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	for at := 0; at < size; at += 4 {
		all = append(all, asm.StoreImm(asm.RFP, int16(at-size), int64(int32(binary.NativeEndian.Uint32(key[at:]))),
			asm.Word))
	}
	return append(all,
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -size), asm.Mov.Imm(asm.R3, size),
		asm.Mov.Imm(asm.R4, zeroChecksum), asm.FnSkbSetTunnelKey.Call(),
		asm.JEq.Imm(asm.R0, 0, pass),
		asm.Mov.Imm(asm.R0, 2), asm.Return(), // TC_ACT_SHOT
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol(pass))
}
