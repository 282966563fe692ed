package fold

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// rodata has 1, 2 and 3 as 32-bit numbers, then 2^40 as a 64-bit one.
var rodata = binary.LittleEndian.AppendUint64([]byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0}, 1<<40)

// data points a register to an offset into the read-only map.
func data(r asm.Register, offset uint32) asm.Instruction {
	return asm.LoadMapValue(r, 0, offset).WithReference(".rodata")
}

// jump is a jump over a number of 8-byte units.
func jump(ins asm.Instruction, over int16) asm.Instruction {
	ins.Metadata, ins.Offset = asm.Metadata{}, over
	return ins
}

func function(name string, ins asm.Instruction) asm.Instruction { return ins.WithSymbol(name) }

// text is the program, an instruction each line.
func text(insns asm.Instructions) string {
	var b strings.Builder
	for _, ins := range insns {
		if ins.Symbol() != "" {
			b.WriteString(ins.Symbol() + ": ")
		}
		fmt.Fprintln(&b, ins)
	}
	return b.String()
}

func TestConstants(t *testing.T) {
	ret := asm.Return()
	for _, test := range []struct {
		name     string
		in, want asm.Instructions
	}{
		{"a load", asm.Instructions{data(asm.R1, 4), asm.LoadMem(asm.R0, asm.R1, 0, asm.Word), ret},
			asm.Instructions{asm.Mov.Imm32(asm.R0, 2), ret}},
		{"the address is in use", asm.Instructions{data(asm.R1, 0), asm.LoadMem(asm.R0, asm.R1, 4, asm.Word),
			asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord), ret},
			asm.Instructions{data(asm.R1, 0), asm.Mov.Imm32(asm.R0, 2),
				asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord), ret}},
		{"64 bits", asm.Instructions{data(asm.R1, 8), asm.LoadMem(asm.R0, asm.R1, 8, asm.DWord), ret},
			asm.Instructions{asm.LoadImm(asm.R0, 1<<40, asm.DWord), ret}},
		{"beyond the end", asm.Instructions{data(asm.R1, 20), asm.LoadMem(asm.R0, asm.R1, 0, asm.DWord), ret},
			asm.Instructions{data(asm.R1, 20), asm.LoadMem(asm.R0, asm.R1, 0, asm.DWord), ret}},
		{"a taken branch", asm.Instructions{data(asm.R1, 0), asm.LoadMem(asm.R2, asm.R1, 0, asm.Byte),
			jump(asm.JEq.Imm(asm.R2, 1, "x"), 2), asm.Mov.Imm(asm.R0, 4), ret, asm.Mov.Imm(asm.R0, 5), ret},
			asm.Instructions{asm.Mov.Imm(asm.R0, 5), ret}},
		{"a branch that is not", asm.Instructions{data(asm.R1, 0), asm.LoadMem(asm.R2, asm.R1, 0, asm.Byte),
			jump(asm.JNE.Imm32(asm.R2, 1, "x"), 2), asm.Mov.Imm(asm.R0, 4), ret, asm.Mov.Imm(asm.R0, 5), ret},
			asm.Instructions{asm.Mov.Imm(asm.R0, 4), ret}},
		{"an unknown one", asm.Instructions{asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), asm.Mov.Imm(asm.R0, 4),
			jump(asm.JEq.Imm(asm.R2, 1, "x"), 1), asm.Mov.Imm(asm.R0, 5), asm.Add.Imm(asm.R0, 1), ret},
			asm.Instructions{asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), asm.Mov.Imm(asm.R0, 4),
				jump(asm.JEq.Imm(asm.R2, 1, "x"), 1), asm.Mov.Imm(asm.R0, 5), asm.Add.Imm(asm.R0, 1), ret}},
		{"two paths to one value", asm.Instructions{asm.LoadMem(asm.R2, asm.R1, 0, asm.Word),
			asm.Mov.Imm(asm.R3, 7), jump(asm.JEq.Imm(asm.R2, 1, "x"), 1), asm.Mov.Imm(asm.R3, 7),
			asm.Mov.Reg(asm.R0, asm.R3), ret},
			asm.Instructions{asm.LoadMem(asm.R2, asm.R1, 0, asm.Word),
				jump(asm.JEq.Imm(asm.R2, 1, "x"), 0), asm.Mov.Imm32(asm.R0, 7), ret}},
		{"a loop", asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Add.Imm(asm.R0, 1),
			jump(asm.JLT.Imm(asm.R0, 9, "x"), -2), ret},
			asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Add.Imm(asm.R0, 1),
				jump(asm.JLT.Imm(asm.R0, 9, "x"), -2), ret}},
		{"a shift", asm.Instructions{data(asm.R3, 8), asm.LoadMem(asm.R2, asm.R3, 0, asm.Word),
			asm.LoadMem(asm.R0, asm.R1, 0, asm.Word), asm.RSh.Reg(asm.R0, asm.R2), ret},
			asm.Instructions{asm.LoadMem(asm.R0, asm.R1, 0, asm.Word), asm.RSh.Imm(asm.R0, 3), ret}},
		{"arguments of a call", asm.Instructions{data(asm.R3, 8), asm.LoadMem(asm.R2, asm.R3, 0, asm.Word),
			asm.Mov.Imm(asm.R6, 1), asm.FnRedirect.Call(), ret},
			asm.Instructions{data(asm.R3, 8), asm.Mov.Imm32(asm.R2, 3), asm.FnRedirect.Call(), ret}},
		{"a function that is not called", asm.Instructions{data(asm.R2, 0), asm.LoadMem(asm.R2, asm.R2, 0, asm.Byte),
			jump(asm.JEq.Imm(asm.R2, 1, "x"), 2), asm.Call.Label("f"), ret, asm.Call.Label("g"), ret,
			function("f", asm.Mov.Imm(asm.R0, 1)), ret, function("g", asm.Mov.Imm(asm.R0, 2)), ret},
			asm.Instructions{asm.Mov.Imm32(asm.R2, 1), asm.Call.Label("g"), ret,
				function("g", asm.Mov.Imm(asm.R0, 2)), ret}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Constants(test.in, ".rodata", rodata)
			if err != nil {
				t.Fatal(err)
			}
			if text(got) != text(test.want) {
				t.Errorf("got\n%swant\n%s", text(got), text(test.want))
			}
		})
	}
}

func TestErrors(t *testing.T) {
	for want, insns := range map[string]asm.Instructions{
		"no target":      {jump(asm.JEq.Imm(asm.R1, 1, "x"), 5), asm.Return()},
		"no function f":  {asm.Call.Label("f"), asm.Return()},
		"no target of t": {asm.Ja.Label("x"), asm.Mov.Imm(asm.R0, 0).WithSymbol("x"), asm.Return()},
	} {
		if _, err := Constants(insns, ".rodata", rodata); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", insns, err, want)
		}
	}
}
