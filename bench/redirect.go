package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"myelin/endpoint/podlink"
)

// redirectPath is pod→pod with the shortest programs there are: what a pod sends goes out of the wire, what the wire
// brings into the pod, unread and unchanged. No datapath that redirects between links of the same kind can be faster,
// so it bounds what there is to reach. Needs kernel 6.6, for TCX.
type redirectPath struct {
	kernelPath
	ended []func() error
}

// Redirects are pod→pod by two redirects and nothing else, on veth, and on netkit if the kernel has it. The netkit
// links are of layer 2, since the programs write no MAC addresses.
func Redirects() []Scenario {
	all := []Scenario{&redirectPath{kernelPath: kernelPath{name: "redirect", pods: true}}}
	if podlink.ProbeNetkit() == nil {
		all = append(all, &redirectPath{kernelPath: kernelPath{name: "netkit-redirect", pods: true,
			kind: podlink.NetkitL2}})
	}
	return all
}

func (r *redirectPath) Setup(ctx context.Context, family Family) (Path, error) {
	path, err := r.kernelPath.Setup(ctx, family)
	if err != nil {
		return path, err
	}
	for i, node := range []string{"a", "b"} {
		if err := r.hang(ctx, family.addressing(), node, []string{"b", "a"}[i]); err != nil {
			return path, fmt.Errorf("redirect on node %s: %w", node, err)
		}
	}
	return path, nil
}

// hang attaches the programs. Pods address their frames to the other node's wire, since no node on the way writes them
// anew.
func (r *redirectPath) hang(ctx context.Context, at addressing, node, other string) error {
	host := r.prefix + node
	mac, _, err1 := device(r.prefix+other, "wire0")
	_, pod, err2 := device(host, "pod0")
	_, wire, err3 := device(host, "wire0")
	err := errors.Join(err1, err2, err3,
		gatewayIs(ctx, at, host, mac))
	if err != nil {
		return err
	}
	return inNetns(host, func() error {
		return errors.Join(r.attach(pod, redirect(asm.FnRedirect, wire), r.kind.IsNetkit()),
			r.attach(wire, redirect(asm.FnRedirectPeer, pod), false))
	})
}

// redirect lets a packet go on by a device.
func redirect(how asm.BuiltinFunc, out int) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R1, int32(out)), asm.Mov.Imm(asm.R2, 0), how.Call(), asm.Return()}
}

// attach runs a program on all that comes in by a device; netkit: while the device's peer transmits it.
func (r *redirectPath) attach(in int, program asm.Instructions, netkit bool) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: program})
	if err != nil {
		return fmt.Errorf("load a redirect: %w", err)
	}
	r.ended = append(r.ended, p.Close)
	var l link.Link
	if netkit {
		l, err = link.AttachNetkit(link.NetkitOptions{Interface: in, Program: p, Attach: ebpf.AttachNetkitPeer})
	} else {
		l, err = link.AttachTCX(link.TCXOptions{Interface: in, Program: p, Attach: ebpf.AttachTCXIngress})
	}
	if err != nil {
		return fmt.Errorf("attach a redirect: %w", err)
	}
	r.ended = append(r.ended, l.Close)
	return nil
}

func (r *redirectPath) Teardown(ctx context.Context) error {
	return errors.Join(end(&r.ended), r.kernelPath.Teardown(ctx))
}
