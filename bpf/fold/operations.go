package fold

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
)

func missing(i int, ins *asm.Instruction) error {
	return fmt.Errorf("instruction %d (%v): no function %s", i, ins, ins.Reference())
}

// source is the second operand of an operation or a comparison.
func source(ins *asm.Instruction, v *values) value {
	if ins.OpCode.Source() == asm.RegSource {
		return v[ins.Src]
	}
	return value{kind: constant, n: uint64(int64(int32(ins.Constant)))}
}

// calculate is the result of an operation (RFC 9669 section 4.1).
func calculate(ins *asm.Instruction, v *values) value {
	op, wide := ins.OpCode.ALUOp(), ins.OpCode.Class() == asm.ALU64Class
	a, b := v[ins.Dst], source(ins, v)
	if relocated(ins) || op == asm.Swap {
		return value{kind: varying}
	}
	if op == asm.Mov && wide {
		return b
	}
	if a.kind == pointer && op == asm.Add && wide && b.kind == constant {
		a.n += b.n
		return a
	}
	if b.kind != constant || a.kind != constant && op != asm.Mov {
		return value{kind: varying}
	}
	n, known := result(op, a.n, b.n, wide)
	if !known {
		return value{kind: varying}
	}
	if !wide {
		n = uint64(uint32(n))
	}
	return value{kind: constant, n: n}
}

// result is that of an operation on two numbers. Those that are not known here are rare.
func result(op asm.ALUOp, a, b uint64, wide bool) (n uint64, known bool) {
	bits := uint64(32)
	if wide {
		bits = 64
	} else {
		a, b = uint64(uint32(a)), uint64(uint32(b))
	}
	switch op {
	case asm.Mov:
		return b, true
	case asm.Add:
		return a + b, true
	case asm.Sub:
		return a - b, true
	case asm.Mul:
		return a * b, true
	case asm.Or:
		return a | b, true
	case asm.And:
		return a & b, true
	case asm.Xor:
		return a ^ b, true
	case asm.LSh:
		return a << (b & (bits - 1)), true
	case asm.RSh:
		return a >> (b & (bits - 1)), true
	}
	return 0, false
}

// compare is whether a conditional jump is taken (RFC 9669 section 4.3).
func compare(ins *asm.Instruction, v *values) (taken, known bool) {
	a, b := v[ins.Dst], source(ins, v)
	if a.kind != constant || b.kind != constant || relocated(ins) {
		return false, false
	}
	x, y, sx, sy := a.n, b.n, int64(a.n), int64(b.n)
	if ins.OpCode.Class() == asm.Jump32Class {
		x, y, sx, sy = uint64(uint32(x)), uint64(uint32(y)), int64(int32(x)), int64(int32(y))
	}
	switch ins.OpCode.JumpOp() {
	case asm.JEq:
		return x == y, true
	case asm.JNE:
		return x != y, true
	case asm.JSet:
		return x&y != 0, true
	case asm.JGT:
		return x > y, true
	case asm.JGE:
		return x >= y, true
	case asm.JLT:
		return x < y, true
	case asm.JLE:
		return x <= y, true
	case asm.JSGT:
		return sx > sy, true
	case asm.JSGE:
		return sx >= sy, true
	case asm.JSLT:
		return sx < sy, true
	case asm.JSLE:
		return sx <= sy, true
	}
	return false, false
}
