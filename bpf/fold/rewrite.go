package fold

import "github.com/cilium/ebpf/asm"

// rewrite has the instructions that are reached use the constants that are known: as their result, as their second
// operand, or as the decision of a jump.
func (p *program) rewrite() {
	p.removed = make([]bool, len(p.insns))
	p.follow()
	for n := range p.blocks {
		b := &p.blocks[n]
		if !b.reached {
			continue
		}
		v := b.in
		for i := b.first; i < b.end; i++ {
			ins := &p.insns[i]
			if i == b.end-1 && b.jump >= 0 {
				p.decide(b, i, &v)
				continue
			}
			before := v
			p.execute(ins, &v)
			if r := v[ins.Dst]; writes(ins) && r.kind == constant {
				become(ins, r.n)
			} else if ins.OpCode.Class().IsALU() {
				immediate(ins, before[ins.Src])
			}
		}
	}
}

// decide makes a jump unconditional, or removes it, if its condition is known.
func (p *program) decide(b *block, i int, v *values) {
	ins := &p.insns[i]
	taken, passed := p.branch(b, v)
	switch {
	case taken && passed:
		immediate(ins, v[ins.Src])
	case taken && b.falls:
		ins.OpCode, ins.Dst, ins.Src, ins.Constant = asm.Ja.Op(asm.ImmSource), 0, 0, 0
		b.falls = false
	case passed:
		p.remove(b, i)
	}
	if taken && !passed && p.following[p.block[i]] == b.jump {
		p.remove(b, i)
	}
}

// follow finds the block that is reached after each by doing nothing.
func (p *program) follow() {
	p.following = make([]int, len(p.blocks))
	next := -1
	for n := len(p.blocks) - 1; n >= 0; n-- {
		if p.following[n] = next; p.blocks[n].reached {
			next = n
		}
	}
}

// remove removes the jump at the end of a block. The first instruction of a function has what describes the function.
func (p *program) remove(b *block, i int) {
	b.jump, b.falls = -1, true
	if ins := &p.insns[i]; ins.Symbol() != "" {
		ins.OpCode, ins.Dst, ins.Src, ins.Constant = asm.Mov.Op32(asm.ImmSource), asm.R0, 0, 0
		return
	}
	p.removed[i] = true
}

// writes reports whether all that an instruction does is to write its destination.
func writes(ins *asm.Instruction) bool {
	class := ins.OpCode.Class()
	return class.IsALU() || class == asm.LdXClass || ins.OpCode.IsDWordLoad()
}

// become makes the instruction one that loads a constant.
func become(ins *asm.Instruction, n uint64) {
	op := ins.OpCode
	switch {
	case op.IsDWordLoad() || op.ALUOp() == asm.Mov && op.Source() == asm.ImmSource:
		return
	case n <= 1<<32-1:
		ins.OpCode = asm.Mov.Op32(asm.ImmSource)
	case uint64(int64(int32(n))) == n:
		ins.OpCode = asm.Mov.Op(asm.ImmSource)
	case op.Class() == asm.LdXClass:
		ins.OpCode = asm.LoadImmOp(asm.DWord)
	default:
		return
	}
	ins.Src, ins.Offset = 0, 0
	if ins.Constant = int64(int32(n)); ins.OpCode.IsDWordLoad() {
		ins.Constant = int64(n)
	}
}

// immediate makes the second operand of an operation or a comparison a constant, if that is its value.
func immediate(ins *asm.Instruction, operand value) {
	op, n := ins.OpCode, operand.n
	if op.Source() != asm.RegSource || operand.kind != constant || !takes(op, n) {
		return
	}
	wide := op.Class() == asm.ALU64Class || op.Class() == asm.JumpClass
	if wide && uint64(int64(int32(n))) != n {
		return
	}
	ins.OpCode, ins.Src, ins.Constant = op.SetSource(asm.ImmSource), 0, int64(int32(n))
}

// takes reports whether the verifier accepts a number as the second operand.
func takes(op asm.OpCode, n uint64) bool {
	switch op.ALUOp() {
	case asm.InvalidALUOp:
		return true // a jump
	case asm.Add, asm.Sub, asm.Mul, asm.Or, asm.And, asm.Xor, asm.Mov:
		return true
	case asm.LSh, asm.RSh:
		return n < 32 || op.Class() == asm.ALU64Class && n < 64
	}
	return false
}
