package fold

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
)

// TestSameResult runs random programs as they are and folded, which must return the same.
func TestSameResult(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to load BPF programs")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	constants, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(rodata)),
		MaxEntries: 1, Contents: []ebpf.MapKV{{Key: uint32(0), Value: rodata}}})
	if err != nil {
		t.Fatal(err)
	}
	defer constants.Close()
	random := rand.New(rand.NewPCG(1, 2))
	fewer := 0
	for n := range 300 {
		insns := randomProgram(random)
		folded, err := Constants(insns, ".rodata", rodata)
		if err != nil {
			t.Fatalf("program %d: %v", n, err)
		}
		if len(folded) < len(insns) {
			fewer++
		}
		if want, got := run(t, constants, insns), run(t, constants, folded); got != want {
			t.Fatalf("program %d returns %#x, folded %#x\n%s\n%s", n, want, got, text(insns), text(folded))
		}
	}
	if fewer < 200 {
		t.Errorf("only %d of 300 programs have fewer instructions", fewer)
	}
}

// run returns what a program returns for a packet of 64 bytes.
func run(t *testing.T, constants *ebpf.Map, insns asm.Instructions) uint32 {
	t.Helper()
	insns = slices.Clone(insns)
	if err := insns.AssociateMap(".rodata", constants); err != nil && len(insns.ReferenceOffsets()) > 0 {
		t.Fatal(err)
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: insns, License: "GPL"})
	if err != nil {
		t.Fatalf("%+v\n%s", err, text(insns))
	}
	defer p.Close()
	got, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64)})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// randomProgram makes a program of constants, the length of the packet, operations on them and jumps that go forward.
func randomProgram(random *rand.Rand) asm.Instructions {
	insns := asm.Instructions{asm.LoadMem(asm.R6, asm.R1, 0, asm.Word)}
	for r := asm.R0; r <= asm.R5; r++ {
		insns = append(insns, asm.Mov.Imm(r, random.Int32()-1<<30))
	}
	const steps = 40
	var starts, jumps []int // of steps, in instructions
	for range steps {
		starts = append(starts, len(insns))
		insns = append(insns, instruction(random)...)
		if random.IntN(4) == 0 {
			starts, jumps = append(starts, len(insns)), append(jumps, len(insns))
			insns = append(insns, condition(random))
		}
	}
	starts = append(starts, len(insns))
	insns = append(insns, asm.Xor.Reg(asm.R0, asm.R3), asm.Return())
	at := make([]int, len(insns))
	for i := range insns[1:] {
		at[i+1] = at[i] + int(insns[i].Width())
	}
	for _, i := range jumps {
		next, _ := slices.BinarySearch(starts, i+1)
		insns[i].Offset = int16(at[starts[next+random.IntN(len(starts)-next)]] - at[i+1])
	}
	return insns
}

func register(random *rand.Rand) asm.Register { return asm.Register(random.IntN(6)) }

// instruction gives a register another value.
func instruction(random *rand.Rand) asm.Instructions {
	dst, src, imm := register(random), register(random), random.Int32()-1<<30
	ops := []asm.ALUOp{asm.Add, asm.Sub, asm.Mul, asm.Or, asm.And, asm.Xor, asm.Mov, asm.Neg, asm.ArSh, asm.LSh,
		asm.RSh}
	op := ops[random.IntN(len(ops))]
	switch random.IntN(6) {
	case 0:
		return asm.Instructions{data(dst, 0), asm.LoadMem(dst, dst, int16(4*random.IntN(3)), asm.Word)}
	case 1:
		return asm.Instructions{data(dst, 16), asm.LoadMem(dst, dst, 0, asm.DWord)}
	case 2:
		return asm.Instructions{asm.Mov.Reg(dst, asm.R6)}
	case 3:
		if op == asm.ArSh || op == asm.LSh || op == asm.RSh {
			imm &= 31
		}
		if op == asm.Neg {
			imm = 0
		}
		if random.IntN(2) == 0 {
			return asm.Instructions{op.Imm32(dst, imm)}
		}
		return asm.Instructions{op.Imm(dst, imm)}
	}
	if op == asm.Neg {
		op = asm.Mov
	}
	if random.IntN(2) == 0 {
		return asm.Instructions{op.Reg32(dst, src)}
	}
	return asm.Instructions{op.Reg(dst, src)}
}

// condition is a jump whose target is not set yet.
func condition(random *rand.Rand) asm.Instruction {
	ops := []asm.JumpOp{asm.JEq, asm.JNE, asm.JSet, asm.JGT, asm.JGE, asm.JLT, asm.JLE, asm.JSGT, asm.JSGE, asm.JSLT,
		asm.JSLE}
	op, dst, src, imm := ops[random.IntN(len(ops))], register(random), register(random), int32(random.IntN(5))
	switch random.IntN(4) {
	case 0:
		return jump(op.Imm(dst, imm, "x"), 0)
	case 1:
		return jump(op.Imm32(dst, imm, "x"), 0)
	case 2:
		return jump(op.Reg(dst, src, "x"), 0)
	}
	return jump(op.Reg32(dst, src, "x"), 0)
}
