package labtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/endpoint/podlink"
	"myelin/test/packet"
)

// netkitModes are the values of bpf.datapathMode that make netkit links.
func netkitModes() []string { return []string{"netkit", "netkit-l2"} }

func needsNetkit(t *testing.T) {
	t.Helper()
	if err := podlink.ProbeNetkit(); err != nil {
		t.Skip(err)
	}
}

// TestNetkit: pods with netkit links reach what others reach, and cannot get round the programs of their links. They
// go on beside pods of another kind.
//
//	┌─ node1 ──────┐  ┌─ node2 ┐
//	│ a1        b1 │  │   a2   │
//	└──────┬───────┘  └───┬────┘
//	═══════╧══════════════╧═════
func TestNetkit(t *testing.T) {
	needsNetkit(t)
	for _, kind := range netkitModes() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{values: map[string]any{"bpf.datapathMode": kind}})
			c.wantKind(c.end("a1"), kind)
			for range 2 { // with filters at first, and then with links that last
				for _, f := range c.stack.families {
					c.tryAll(f)
				}
				c.waitAttached("node1", 2)
			}
			c.podChangesLink("a1")
			c.podSendsByPeer("b1", "a1")
			c.dropsAtFirst("node1", "b1", kind)
			c.switchesKind("node1")
		})
	}
}

// wantKind checks what the pod's eth0 is.
func (c *cluster) wantKind(pod end, kind string) {
	c.t.Helper()
	err := pod.Do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if got := eth0.Type(); got != podlink.Kind(kind).Device() {
			return fmt.Errorf("eth0 of %s is %s, want %s", pod.Name(), got, kind)
		}
		return nil
	})
	if err != nil {
		c.t.Error(err)
	}
}

// waitAttached returns when so many of the node's netkit devices run from_pod themselves.
func (c *cluster) waitAttached(node string, n int) {
	c.t.Helper()
	pins := filepath.Join(c.Node(node).BPFRoot(), "myelin", "links", "*-"+string(bpf.FromPodLink))
	eventually(c.t, "programs are attached to netkit devices", time.Minute, func() error {
		if found, err := filepath.Glob(pins); err != nil || len(found) != n {
			return fmt.Errorf("%d of %d are (%v)", len(found), n, err)
		}
		return nil
	})
}

// tryAll tries the ways from and to pods of both nodes.
func (c *cluster) tryAll(family int) {
	c.t.Helper()
	for _, w := range []way{{"a1", "b1", "a1"}, {"a1", "a2", "a1"}, {"a2", "a1", "a2"}} {
		c.try(w, family)
	}
}

// program is one that does what the instructions say.
func program(instructions ...asm.Instruction) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
		Instructions: append(instructions, asm.Return())})
}

// switchesKind restarts a node's agent with another kind of links: running pods keep theirs, and a pod that is made
// then is reached by them.
func (c *cluster) switchesKind(node string) {
	c.t.Helper()
	pods := map[string]int{}
	for _, pod := range []string{"a1", "b1"} {
		pods[pod] = c.linkIndex(pod)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), patience(time.Minute))
	defer cancel()
	n := c.Node(node)
	if err := n.StopAgent(ctx); err != nil {
		c.t.Fatal(err)
	}
	if err := n.StartAgent(ctx, map[string]any{"bpf.datapathMode": "veth"}); err != nil {
		c.t.Fatal(err)
	}
	for pod, index := range pods {
		if now := c.linkIndex(pod); now != index {
			c.t.Errorf("eth0 of %s had index %d, and now has %d", pod, index, now)
		}
	}
	young := c.runtime(node).start(c.t, 1)[0].end()
	c.wantKind(young, "veth")
	for _, f := range c.stack.families {
		for _, pod := range []string{"a1", "a2"} {
			c.connect(young, c.end(pod), f)
			c.connect(c.end(pod), young, f)
		}
		c.tryAll(f)
	}
}

// connect has one end send the other what fills segments of TCP.
func (c *cluster) connect(from, to end, family int) {
	c.t.Helper()
	seen, err := tcp(c.t.Context(), from, to, to.addr(family), fewer(1<<20))
	if err != nil || seen != from.addr(family) {
		c.t.Errorf("IPv%d TCP %s→%s: seen from %s: %v", family, from.Name(), to.Name(), seen, err)
	}
}

// linkIndex is the number of a pod's eth0 in its namespace.
func (c *cluster) linkIndex(pod string) (index int) {
	c.t.Helper()
	err := c.end(pod).Do(func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err == nil {
			index = eth0.Index
		}
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return index
}

// podChangesLink has a pod with all capabilities try to change its link: the kernel takes programs and policies of
// netkit devices only through the host side.
func (c *cluster) podChangesLink(pod string) {
	c.t.Helper()
	err := c.end(pod).Do(func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		pass, err := program(asm.Mov.Imm(asm.R0, 0))
		if err != nil {
			return err
		}
		defer pass.Close()
		for _, at := range []ebpf.AttachType{ebpf.AttachNetkitPrimary, ebpf.AttachNetkitPeer} {
			if l, err := link.AttachNetkit(link.NetkitOptions{Interface: eth0.Index, Program: pass, Attach: at,
				Anchor: link.Head()}); err == nil {
				return errors.Join(fmt.Errorf("attached a program at %s", at), l.Close())
			}
			if _, err := link.QueryPrograms(link.QueryOptions{Target: eth0.Index, Attach: at}); err == nil {
				return fmt.Errorf("the programs at %s can be listed, and so be replaced", at)
			}
		}
		if podlink.Open(eth0.Index) == nil {
			return errors.New("changed the policies of the link")
		}
		return nil
	})
	if err != nil {
		c.t.Errorf("%s: %v", pod, err)
	}
}

// podSendsByPeer has a pod hand all that it receives to the host side of its link by bpf_redirect_peer, which passes by
// the program on the netkit device, with marks in skb->cb. What the other pod sends it thus has a forged address.
func (c *cluster) podSendsByPeer(from, to string) {
	c.t.Helper()
	frame, err := packet.Parse(`eth b > gw | ip4 b > a | udp 7 > 9 | "x"`, 4, c.names())
	if err != nil {
		c.t.Fatal(err)
	}
	var l link.Link
	err = c.end(to).Do(func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		const cb1, cb2 = 52, 56 // offsets in struct __sk_buff
		back, err := program(
			asm.Mov.Imm(asm.R2, 0x6d796b66), asm.StoreMem(asm.R1, cb1, asm.R2, asm.Word), // NETKIT_FORWARDED
			asm.StoreMem(asm.R1, cb2, asm.R2, asm.Word),
			asm.Mov.Imm(asm.R1, int32(eth0.Index)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirectPeer.Call())
		if err != nil {
			return err
		}
		defer back.Close()
		l, err = link.AttachTCX(link.TCXOptions{Interface: eth0.Index, Program: back, Attach: ebpf.AttachTCXIngress})
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	defer l.Close()
	spoofed := func() uint64 {
		return c.outcome("node1", bpf.DatapathOutcomeDROP_SPOOFED_ADDRESS) +
			c.outcome("node1", bpf.DatapathOutcomeDROP_SPOOFED_MAC)
	}
	before := spoofed()
	if err := c.sendFrame(from, frame, copies); err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, "packets by bpf_redirect_peer are checked", 5*time.Second, func() error {
		if got := spoofed() - before; got < copies {
			return fmt.Errorf("%d of %d are dropped as spoofed", got, copies)
		}
		return nil
	})
}

// dropsAtFirst: nothing that a pod sends passes a netkit link before Open, which is called when it has its programs.
func (c *cluster) dropsAtFirst(node, pod, kind string) {
	c.t.Helper()
	pair := podlink.Spec{Kind: podlink.Kind(kind), Name: "early0", IfName: "eth1", MTU: 1500,
		LinkMAC: make(net.HardwareAddr, 6), PodMAC: make(net.HardwareAddr, 6)}
	if pair.Kind == podlink.NetkitL2 {
		pair.LinkMAC[0], pair.PodMAC[0] = 2, 6
	}
	err := c.end(pod).Do(func() error {
		ns, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		pair.NetNS = fmt.Sprintf("/proc/self/fd/%d", ns)
		c.t.Cleanup(func() { unix.Close(ns) })
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	err = c.end(node).Do(func() error {
		host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer host.Close()
		driver := podlink.New(host, podlink.Options{ProcSys: "/proc/sys"})
		link, err := driver.Create(pair)
		if err = errors.Join(err, driver.Check(pair)); err != nil {
			return err
		}
		for _, open := range []bool{false, true} {
			if open {
				err = podlink.Open(link.Index)
			}
			if err = errors.Join(err, c.sendRaw(pod, pair.IfName, make([]byte, 64), copies)); err != nil {
				return err
			}
			l, err := host.LinkByIndex(link.Index)
			if err != nil {
				return err
			}
			if n := l.Attrs().Statistics.RxPackets; (n >= copies) != open || !open && n != 0 {
				c.t.Errorf("%s: %d packets passed; opened: %t", kind, n, open)
			}
		}
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
}
