package fold

import "github.com/cilium/ebpf/asm"

// regs is a set of registers.
type regs uint16

func set(list ...asm.Register) (s regs) {
	for _, r := range list {
		s |= 1 << r
	}
	return s
}

var (
	arguments = set(asm.R1, asm.R2, asm.R3, asm.R4, asm.R5)
	callee    = arguments | set(asm.R0) // that a call overwrites
)

// analyze finds which registers are live, and removes the instructions whose result is not.
func (p *program) analyze() {
	for changed := true; changed; {
		changed = false
		for n := len(p.blocks) - 1; n >= 0; n-- {
			b := &p.blocks[n]
			if !b.reached {
				continue
			}
			if live := p.walk(b, p.after(n), nil); live != b.live {
				b.live, changed = live, true
			}
		}
	}
	for n := range p.blocks {
		if b := &p.blocks[n]; b.reached {
			p.walk(b, p.after(n), func(i int) {
				if p.insns[i].Symbol() == "" {
					p.removed[i] = true
				}
			})
		}
	}
}

// after are the registers that are live at the end of a block.
func (p *program) after(n int) (live regs) {
	b := &p.blocks[n]
	if b.jump >= 0 {
		live |= p.blocks[b.jump].live
	}
	if b.falls {
		live |= p.blocks[p.following[n]].live
	}
	return live
}

// walk returns the registers that are live at the beginning of a block, given those at its end, and calls dead for each
// instruction without effect.
func (p *program) walk(b *block, live regs, dead func(i int)) regs {
	for i := b.end - 1; i >= b.first; i-- {
		ins := &p.insns[i]
		if p.removed[i] {
			continue
		}
		reads, writesTo := effects(ins)
		if pure(ins) && live&writesTo == 0 {
			if dead != nil {
				dead(i)
			}
			continue
		}
		live = live&^writesTo | reads
	}
	return live
}

// pure reports whether an instruction does nothing but calculate.
func pure(ins *asm.Instruction) bool {
	return ins.OpCode.Class().IsALU() || ins.OpCode.IsDWordLoad() && !ins.IsFunctionReference()
}

// effects are the registers that an instruction reads and writes.
func effects(ins *asm.Instruction) (reads, written regs) {
	op := ins.OpCode
	switch class := op.Class(); {
	case class.IsALU():
		written = set(ins.Dst)
		if op.ALUOp() != asm.Mov || relocated(ins) {
			reads = written
		}
		if op.Source() == asm.RegSource {
			reads |= set(ins.Src)
		}
	case op.JumpOp() == asm.Call:
		return arguments, callee
	case op.JumpOp() == asm.Exit:
		return set(asm.R0), 0
	case jumps(ins) && !always(ins):
		reads = set(ins.Dst)
		if op.Source() == asm.RegSource {
			reads |= set(ins.Src)
		}
	case op.IsDWordLoad():
		return 0, set(ins.Dst)
	case class == asm.LdXClass:
		return set(ins.Src), set(ins.Dst)
	case class == asm.StClass:
		return set(ins.Dst), 0
	case class == asm.StXClass:
		return set(ins.Dst, ins.Src, asm.R0), 0
	case class == asm.LdClass:
		return arguments | set(asm.R6), callee
	}
	return reads, written
}
