package hooks

import (
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"myelin/endpoint/nettest"
)

// TestList puts a program at each place of a device, and takes them away.
func TestList(t *testing.T) {
	nettest.Root(t)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a0"}, PeerName: "b0"}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlink.LinkDel(veth) })
	if got := list(t); len(got) != 0 {
		t.Fatalf("a new device has %v", got)
	}
	in, out, driver := load(t, "in", ebpf.SchedCLS), load(t, "out", ebpf.SchedCLS), load(t, "driver", ebpf.XDP)
	index := veth.Attrs().Index
	x, err := link.AttachXDP(link.XDPOptions{Program: driver, Interface: index, Flags: link.XDPGenericMode})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	want := []string{"driver at xdp, generic"}
	if TCX() == nil {
		want = append(want, "in at tcx ingress", "out at tcx egress")
		for _, o := range []link.TCXOptions{
			{Interface: index, Program: in, Attach: ebpf.AttachTCXIngress},
			{Interface: index, Program: out, Attach: ebpf.AttachTCXEgress},
		} {
			l, err := link.AttachTCX(o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}
	}
	clsactFilter(t, index, netlink.HANDLE_MIN_INGRESS, 7, in)
	clsactFilter(t, index, netlink.HANDLE_MIN_EGRESS, 8, out)
	want = append(want, "in at clsact ingress, priority 7", "out at clsact egress, priority 8")
	if got := list(t); !slices.Equal(got, want) {
		t.Errorf("programs\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestOrder: the position is the order in which the kernel runs them.
func TestOrder(t *testing.T) {
	nettest.Root(t)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a0"}, PeerName: "b0"}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlink.LinkDel(veth) })
	index := veth.Attrs().Index
	clsactFilter(t, index, netlink.HANDLE_MIN_INGRESS, 20, load(t, "second", ebpf.SchedCLS))
	clsactFilter(t, index, netlink.HANDLE_MIN_INGRESS, 10, load(t, "first", ebpf.SchedCLS))
	want := []string{"first at clsact ingress, priority 10", "second at clsact ingress, priority 20"}
	if got := list(t); !slices.Equal(got, want) {
		t.Errorf("programs %q, want %q", got, want)
	}
}

// list is what List says about a0, without the numbers of programs.
func list(t *testing.T) (texts []string) {
	t.Helper()
	h, err := netlink.NewHandle()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	l, err := h.LinkByName("a0")
	if err != nil {
		t.Fatal(err)
	}
	programs, err := List(h, l)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		if p.ID == 0 {
			t.Errorf("%s has no number", p)
		}
		p.ID = 0
		texts = append(texts, p.String())
	}
	return texts
}

func load(t *testing.T, name string, kind ebpf.ProgramType) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: kind, License: "Dual BSD/GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2),
			asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func clsactFilter(t *testing.T, index int, parent uint32, priority uint16, p *ebpf.Program) {
	t.Helper()
	// It may be there: both sides are of one qdisc.
	_ = netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}})
	err := netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: parent, Handle: 1, Protocol: 3, Priority: priority},
		Fd:          p.FD(), Name: "test", DirectAction: true,
	})
	if err != nil {
		t.Fatal(err)
	}
}
