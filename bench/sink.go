package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// sink counts what comes to a device from a front's own address for the backend, and loses it where that costs least:
// frames in XDP, and packets, which veth would first have to make frames of, in tc. All else goes on. Kernel 6.6 or
// later.
type sink struct {
	program *ebpf.Program
	counts  *ebpf.Map
	link    link.Link
}

func newSink(family Family, netns string, index int, frames bool) (s *sink, err error) {
	s = &sink{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("attach sink: %w", err), s.close())
		}
	}()
	if s.counts, err = ebpf.NewMap(&ebpf.MapSpec{Name: "sink", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8,
		MaxEntries: 1}); err != nil {
		return s, err
	}
	kind := ebpf.SchedCLS
	if frames {
		kind = ebpf.XDP
	}
	instructions := counting(s.counts.FD(), family, layoutOf(kind))
	if s.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "sink", Type: kind, License: "GPL",
		Instructions: instructions}); err != nil {
		return s, err
	}
	return s, inNetns(netns, func() (err error) {
		if frames {
			s.link, err = link.AttachXDP(link.XDPOptions{Program: s.program, Interface: index,
				Flags: link.XDPDriverMode})
		} else {
			s.link, err = link.AttachTCX(link.TCXOptions{Program: s.program, Interface: index,
				Attach: ebpf.AttachTCXIngress})
		}
		return err
	})
}

// counting compares the last 32-bit words of both addresses.
func counting(counts int, family Family, kind layout) asm.Instructions {
	const ethernet = 14
	src, dst := int16(ethernet+12), int16(ethernet+16)
	if family == IPv6 {
		src, dst = ethernet+8+12, ethernet+24+12
	}
	at := family.addressing()
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, kind.data, asm.Word),
		asm.LoadMem(asm.R3, asm.R1, kind.end, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, int32(dst)+4),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R4, asm.R2, src, asm.Word),
		asm.LoadImm(asm.R5, lastWord(at.wire[0]), asm.DWord),
		asm.JNE.Reg(asm.R4, asm.R5, "pass"),
		asm.LoadMem(asm.R4, asm.R2, dst, asm.Word),
		asm.LoadImm(asm.R5, lastWord(at.pod[1]), asm.DWord),
		asm.JNE.Reg(asm.R4, asm.R5, "pass"),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, counts),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, kind.lost),
		asm.Return(),
		asm.Mov.Imm(asm.R0, kind.goes).WithSymbol("pass"),
		asm.Return(),
	}
}

// lastWord is an address's last four bytes as a program reads them.
func lastWord(addr string) int64 {
	bytes := netip.MustParseAddr(addr).AsSlice()
	return int64(binary.NativeEndian.Uint32(bytes[len(bytes)-4:]))
}

func (s *sink) count() (sum uint64, err error) {
	var cpus []uint64
	if err := s.counts.Lookup(uint32(0), &cpus); err != nil {
		return 0, fmt.Errorf("read sink: %w", err)
	}
	for _, n := range cpus {
		sum += n
	}
	return sum, nil
}

func (s *sink) close() error {
	var err error
	if s.link != nil {
		err = s.link.Close()
	}
	return errors.Join(err, s.program.Close(), s.counts.Close())
}
