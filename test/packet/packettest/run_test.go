package packettest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"myelin/test/packet"
)

func testNames() packet.Names {
	return packet.Names{
		"pod1": {MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, IP4: netip.MustParseAddr("10.0.0.1"),
			IP6: netip.MustParseAddr("fd00::1")},
		"pod2": {MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, IP4: netip.MustParseAddr("10.0.0.2"),
			IP6: netip.MustParseAddr("fd00::2")},
	}
}

func load(t *testing.T, kind ebpf.ProgramType, ins asm.Instructions) *ebpf.Program {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "t", Type: kind, Instructions: ins, License: "MIT"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func offset(f func(*SkBuff) uintptr) int16 {
	var s SkBuff
	return int16(f(&s) - uintptr(unsafe.Pointer(&s)))
}

func TestSkBuffIsTheKernels(t *testing.T) {
	if size := unsafe.Sizeof(SkBuff{}); size != 192 {
		t.Fatalf("SkBuff has %d bytes, struct __sk_buff 192", size)
	}
	// Adds up what the kernel sees: a field at a wrong offset is refused by
	// the kernel, or changes the sum.
	mark := offset(func(s *SkBuff) uintptr { return uintptr(unsafe.Pointer(&s.Mark)) })
	sum := asm.Instructions{asm.LoadMem(asm.R2, asm.R1, mark, asm.Word)}
	for _, field := range []func(*SkBuff) uintptr{
		func(s *SkBuff) uintptr { return uintptr(unsafe.Pointer(&s.Priority)) },
		func(s *SkBuff) uintptr { return uintptr(unsafe.Pointer(&s.Ifindex)) },
		func(s *SkBuff) uintptr { return uintptr(unsafe.Pointer(&s.CB[4])) },
		func(s *SkBuff) uintptr { return uintptr(unsafe.Pointer(&s.WireLen)) },
		func(s *SkBuff) uintptr { return uintptr(unsafe.Pointer(&s.GSOSegs)) },
		func(s *SkBuff) uintptr { return uintptr(unsafe.Pointer(&s.GSOSize)) },
	} {
		sum = append(sum, asm.LoadMem(asm.R3, asm.R1, offset(field), asm.Word), asm.Add.Reg(asm.R2, asm.R3))
	}
	sum = append(sum, asm.StoreMem(asm.R1, mark, asm.R2, asm.Word), asm.Mov.Reg(asm.R0, asm.R2), asm.Return())
	prog := load(t, ebpf.SchedCLS, sum)

	in := Frame(t, packet.IPv4, testNames(), `eth pod1 > pod2 | ip pod1 > pod2 | udp 1 > 2 | len 100`)
	o := Options{Mark: 1 << 20, Priority: 1 << 21, Ifindex: 1, CB: [5]uint32{4: 1 << 22}, WireLen: 1 << 12,
		GSOSegs: 1 << 6, GSOSize: 1 << 9}
	r, err := Run(prog, in, o)
	if err != nil {
		t.Fatal(err)
	}
	if want := uint32(1<<20 + 1<<21 + 1 + 1<<22 + 1<<12 + 1<<6 + 1<<9); r.Ret != want || r.Skb.Mark != want {
		t.Errorf("sum of the fields in the kernel %d, mark after it %d, want %d", r.Ret, r.Skb.Mark, want)
	}
	if r.Skb.CB != o.CB || r.Skb.Priority != o.Priority {
		t.Errorf("metadata changed: %+v", r.Skb)
	}
}

func TestIngressIfindex(t *testing.T) {
	at := offset(func(s *SkBuff) uintptr { return uintptr(unsafe.Pointer(&s.IngressIfindex)) })
	prog := load(t, ebpf.SchedCLS, asm.Instructions{asm.LoadMem(asm.R0, asm.R1, at, asm.Word), asm.Return()})
	r, err := Run(prog, make([]byte, 14), Options{IngressIfindex: 1})
	if errors.Is(err, unix.EINVAL) {
		t.Logf("this kernel has no IngressIfindex: %v", err)
		return
	}
	if err != nil || r.Ret != 1 {
		t.Errorf("the program sees %d, %v; want 1", r.Ret, err)
	}
}

func TestLinear(t *testing.T) {
	end := offset(func(s *SkBuff) uintptr { return uintptr(unsafe.Pointer(&s.DataEnd)) })
	data := offset(func(s *SkBuff) uintptr { return uintptr(unsafe.Pointer(&s.Data)) })
	prog := load(t, ebpf.SchedCLS, asm.Instructions{
		asm.LoadMem(asm.R0, asm.R1, end, asm.Word),
		asm.LoadMem(asm.R2, asm.R1, data, asm.Word),
		asm.Sub.Reg(asm.R0, asm.R2),
		asm.Return(),
	})
	in := Frame(t, packet.IPv6, testNames(), `eth pod1 > pod2 | ip pod1 > pod2 | udp 1 > 2 | len 1000`)
	r, err := Run(prog, in, Options{})
	if err != nil || r.Ret != uint32(len(in)) {
		t.Errorf("without Linear %d bytes are linear, %v; want all %d", r.Ret, err, len(in))
	}
	r, err = Run(prog, in, Options{Linear: 54})
	if errors.Is(err, unix.EINVAL) {
		t.Logf("this kernel has no Linear: %v", err)
		return
	}
	if err != nil || r.Ret != 54 || len(r.Out) != len(in) {
		t.Errorf("with Linear %d bytes are linear and %d come out, %v; want 54 and %d", r.Ret, len(r.Out), err, len(in))
	}
}

func TestRunRefusesShortPacket(t *testing.T) {
	prog := load(t, ebpf.SchedCLS, asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()})
	if _, err := Run(prog, make([]byte, 13), Options{}); err == nil {
		t.Error("13 bytes were accepted")
	}
	if _, _, err := RunXDP(prog, make([]byte, 13), 0); err == nil {
		t.Error("13 bytes were accepted for XDP")
	}
}

// setByte is a program that sets the byte at offset at of the packet.
func setByte(at int32, v int64) asm.Instructions {
	return asm.Instructions{
		asm.StoreImm(asm.RFP, -1, v, asm.Byte),
		asm.Mov.Imm(asm.R2, at),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, -1),
		asm.Mov.Imm(asm.R4, 1),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(),
		asm.Mov.Imm(asm.R0, 7),
		asm.Return(),
	}
}

func TestLife(t *testing.T) {
	// The last byte of the source MAC becomes 2, then that of the
	// destination becomes 1.
	toPod2 := load(t, ebpf.SchedCLS, setByte(11, 2))
	toPod1 := load(t, ebpf.SchedCLS, setByte(5, 1))
	Both(t, func(t *testing.T, f packet.Family) {
		r := Life(t, f, testNames(),
			Step{Hook: "first", Prog: toPod2, Ret: 7,
				In:  `eth pod1 > pod2 | ip pod1 > pod2 | icmp echo id 1 | "ping"`,
				Out: `eth pod2 > pod2 | ip pod1 > pod2 | icmp echo id 1 | "ping"`},
			Step{Hook: "second", Prog: toPod1, Ret: 7, Options: Options{Mark: 5},
				Out: `eth pod2 > pod1 | ip pod1 > pod2 | icmp echo id 1 | "ping"`,
				Check: func(r Result) error {
					if r.Skb.Mark != 5 {
						return fmt.Errorf("mark is %d, want 5", r.Skb.Mark)
					}
					return nil
				}},
			Step{Hook: "again", Prog: toPod1, Ret: 7, Out: "="},
		)
		if want := fmt.Sprintf(`eth pod2 > pod1 | %s pod1 > pod2 | icmp echo id 1 | "ping"`,
			f); packet.Format(r.Out, testNames()) != want {
			t.Errorf("got %s, want %s", packet.Format(r.Out, testNames()), want)
		}
	})
}

func TestLifeFailsWhereThePacketIsNotAsWanted(t *testing.T) {
	prog := load(t, ebpf.SchedCLS, setByte(11, 2))
	in := `eth pod1 > pod2 | ip pod1 > pod2 | udp 1 > 2`
	for name, s := range map[string]Step{
		"return":  {Prog: prog, In: in, Ret: 0},
		"packet":  {Prog: prog, In: in, Ret: 7, Out: "="},
		"check":   {Prog: prog, In: in, Ret: 7, Check: func(Result) error { return errors.New("no") }},
		"grammar": {Prog: prog, In: in, Ret: 7, Out: "eth"},
	} {
		r := &recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			Life(r, packet.IPv4, testNames(), s)
		}()
		<-done
		if !r.failed {
			t.Errorf("%s: Life passed", name)
		}
	}
}

// recorder is a test that fails without failing the one around it.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Fatalf(string, ...any) { r.failed = true; runtime.Goexit() }
func (r *recorder) Fatal(...any)          { r.failed = true; runtime.Goexit() }

func TestRunXDP(t *testing.T) {
	prog := load(t, ebpf.XDP, asm.Instructions{
		asm.LoadMem(asm.R0, asm.R1, 12, asm.Word), // ingress_ifindex
		asm.Return(),
	})
	in := Frame(t, packet.IPv4, testNames(), `eth pod1 > pod2 | ip pod1 > pod2 | udp 1 > 2`)
	for _, ifindex := range []uint32{0, 1} {
		ret, out, err := RunXDP(prog, in, ifindex)
		if err != nil {
			t.Fatal(err)
		}
		if d := packet.Diff(in, out, testNames()); d != "" || ret != 1 {
			t.Errorf("ifindex %d: returned %d, want 1; packet changed: %s", ifindex, ret, d)
		}
	}
}
