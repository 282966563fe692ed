package bench

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"myelin/bpf"
)

// bound is where the bound's program has its keys and its value, below the frame pointer. The value serves both maps.
type bound struct {
	request, reply, frontend, value, slots int32
	proto                                  int32
}

func newBoundLayout() bound {
	tuple, key := int32(unsafe.Sizeof(bpf.DatapathNatTuple{})), int32(unsafe.Sizeof(bpf.DatapathFrontendKey{}))
	var b bound
	b.request = -tuple
	b.reply = b.request - tuple
	b.frontend = b.reply - key
	b.value = b.frontend - int32(max(unsafe.Sizeof(bpf.DatapathNatEntry{}), unsafe.Sizeof(bpf.DatapathNatReply{})))
	b.slots = b.value - int32(unsafe.Sizeof(bpf.DatapathBackendSlotsKey{}))
	return b
}

// newBound loads a program that does only what no new flow with two entries can do without: it finds the frontend and
// inserts an entry of zeros into each of the datapath's maps. With selects, it also finds that a flow of UDP, which may
// begin with any packet, has no entry, and finds the backend. Keys follow from the packet. It returns XDP_TX if both
// entries are inserted.
func newBound(d *bpf.Datapath, family Family, c cost) (*ebpf.Program, error) {
	b := newBoundLayout()
	if b.proto = unix.IPPROTO_TCP; strings.HasPrefix(c.l4, "udp") {
		b.proto = unix.IPPROTO_UDP
	}
	all := b.keys(family)
	if c.selects && b.proto == unix.IPPROTO_UDP {
		all = append(all, pass(d.NatEntries, asm.R2, b.request)...)
		all = append(all, asm.FnMapLookupElem.Call(), asm.JNE.Imm(asm.R0, 0, "lost"))
	}
	all = append(all, b.find(d.Frontends, b.frontend)...)
	if c.selects {
		all = append(all, b.selects(d)...)
	}
	all = append(all, b.insert(d.NatReplies, b.reply)...)
	all = append(all, b.insert(d.NatEntries, b.request)...)
	all = append(all, ending(xdpTX)...)
	all = append(all, asm.Mov.Imm(asm.R0, xdpDrop).WithSymbol("lost"), asm.Return())
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "bound", Type: ebpf.XDP, AttachType: ebpf.AttachXDP,
		License: "GPL", Instructions: all})
	if err != nil {
		return nil, fmt.Errorf("load bound: %w", err)
	}
	return p, nil
}

// pass makes a map the first argument of a helper, and what is at an offset below the frame pointer another.
func pass(m *ebpf.Map, register asm.Register, offset int32) asm.Instructions {
	return asm.Instructions{asm.LoadMapPtr(asm.R1, m.FD()), asm.Mov.Reg(register, asm.RFP),
		asm.Add.Imm(register, offset)}
}

func (b bound) find(m *ebpf.Map, key int32) asm.Instructions {
	return append(pass(m, asm.R2, key), asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "lost"))
}

// selects finds the first backend of the frontend in R0, for external clients.
func (b bound) selects(d *bpf.Datapath) asm.Instructions {
	var f bpf.DatapathFrontend
	set := unsafe.Offsetof(f.Set) + unsafe.Sizeof(f.Set[0])*uintptr(bpf.DatapathServiceScopeSCOPE_EXTERNAL) +
		unsafe.Offsetof(f.Set[0].Id)
	all := asm.Instructions{
		asm.LoadMem(asm.R1, asm.R0, int16(set), asm.Word),
		asm.StoreMem(asm.RFP, int16(b.slots), asm.R1, asm.Word),
		asm.StoreImm(asm.RFP, int16(b.slots)+4, 0, asm.Word),
	}
	all = append(all, b.find(d.BackendSlots, b.slots)...)
	all = append(all, asm.LoadMem(asm.R1, asm.R0, 0, asm.Word), asm.StoreMem(asm.RFP, int16(b.slots), asm.R1, asm.Word))
	return append(all, b.find(d.Backends, b.slots)...)
}

func (b bound) insert(m *ebpf.Map, key int32) asm.Instructions {
	return append(pass(m, asm.R2, key),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, b.value),
		asm.Mov.Imm(asm.R4, int32(ebpf.UpdateNoExist)),
		asm.FnMapUpdateElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "lost"))
}

// keys writes the keys and zeros the value. IPv4 addresses are mapped into IPv6, as in the datapath.
func (b bound) keys(family Family) asm.Instructions {
	var tuple bpf.DatapathNatTuple
	var key bpf.DatapathFrontendKey
	dst, sport, dport := int32(unsafe.Offsetof(tuple.Dst)), int32(unsafe.Offsetof(tuple.Sport)),
		int32(unsafe.Offsetof(tuple.Dport))
	const ethernet = 14
	source, words := int16(ethernet+12), int16(1)
	if family == IPv6 {
		source, words = ethernet+8, 4
	}
	ports := source + 8*words
	all := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, layoutOf(ebpf.XDP).data, asm.Word),
		asm.LoadMem(asm.R7, asm.R1, layoutOf(ebpf.XDP).end, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Add.Imm(asm.R1, int32(ports+4)),
		asm.JGT.Reg(asm.R1, asm.R7, "lost"),
	}
	all = append(all, asm.Mov.Imm(asm.R1, 0))
	for at := b.value; at < 0; at += 8 {
		all = append(all, asm.StoreMem(asm.RFP, int16(at), asm.R1, asm.DWord))
	}
	move := func(from int16, size asm.Size, to ...int32) {
		all = append(all, asm.LoadMem(asm.R1, asm.R6, from, size))
		for _, at := range to {
			all = append(all, asm.StoreMem(asm.RFP, int16(at), asm.R1, size))
		}
	}
	if family == IPv4 {
		for _, at := range []int32{b.request, b.request + dst, b.reply, b.reply + dst, b.frontend} {
			all = append(all, asm.StoreImm(asm.RFP, int16(at)+8, -0x10000, asm.Word))
		}
	}
	for i := range words {
		at := int32(4 * (4 - words + i))
		move(source+4*i, asm.Word, b.request+at, b.reply+dst+at)
		move(source+4*(words+i), asm.Word, b.request+dst+at, b.reply+at, b.frontend+at)
	}
	move(ports, asm.Half, b.request+sport, b.reply+dport)
	move(ports+2, asm.Half, b.request+dport, b.reply+sport, b.frontend+int32(unsafe.Offsetof(key.Port)))
	for _, at := range []int32{b.request + int32(unsafe.Offsetof(tuple.Proto)),
		b.reply + int32(unsafe.Offsetof(tuple.Proto)), b.frontend + int32(unsafe.Offsetof(key.Proto))} {
		all = append(all, asm.StoreImm(asm.RFP, int16(at), int64(b.proto), asm.Byte))
	}
	return all
}
