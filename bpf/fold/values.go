package fold

import (
	"encoding/binary"

	"github.com/cilium/ebpf/asm"
)

// value is what is known about a register.
type value struct {
	kind kind
	n    uint64 // the constant, or the offset into the data
}

type kind uint8

const (
	unset    kind = iota // no path to here has been looked at
	constant             // it is n
	pointer              // it points to n in the data
	varying              // it may be anything
)

// values are those of the registers; the last one is the frame pointer.
type values [asm.RFP + 1]value

// unknown are the registers at the beginning of a function.
func unknown() (v values) {
	for r := range v {
		v[r].kind = varying
	}
	return v
}

// merge adds the values of another path, and reports whether that changed something.
func (v *values) merge(other *values) (changed bool) {
	for r := range v {
		if v[r] == other[r] || v[r].kind == varying {
			continue
		}
		changed = true
		if v[r].kind == unset {
			v[r] = other[r]
		} else {
			v[r] = value{kind: varying}
		}
	}
	return changed
}

// propagate finds the blocks that are reached, with the values of the registers at their beginning.
func (p *program) propagate() error {
	start := unknown()
	queue := []int{}
	reach := func(n int, v *values) {
		b := &p.blocks[n]
		if changed := b.in.merge(v); (changed || !b.reached) && !b.queued {
			b.queued = true
			queue = append(queue, n)
		}
		b.reached = true
	}
	reach(0, &start)
	for len(queue) > 0 {
		n := queue[0]
		queue = queue[1:]
		b := &p.blocks[n]
		b.queued = false
		v := b.in
		for i := b.first; i < b.end; i++ {
			ins := &p.insns[i]
			if ins.IsFunctionReference() {
				f, found := p.functions[ins.Reference()]
				if !found {
					return missing(i, ins)
				}
				reach(f, &start)
			}
			if i < b.end-1 || !jumps(ins) {
				p.execute(ins, &v)
			}
		}
		taken, passed := p.branch(b, &v)
		if taken {
			reach(b.jump, &v)
		}
		if passed {
			reach(n+1, &v)
		}
	}
	return nil
}

// branch reports which successors a block has, given the values at its end.
func (p *program) branch(b *block, v *values) (taken, passed bool) {
	ins := &p.insns[b.end-1]
	if b.jump < 0 || !b.falls {
		return b.jump >= 0, b.falls
	}
	result, known := compare(ins, v)
	return !known || result, !known || !result
}

// execute changes the registers as the instruction does.
func (p *program) execute(ins *asm.Instruction, v *values) {
	switch class := ins.OpCode.Class(); {
	case class.IsALU():
		v[ins.Dst] = calculate(ins, v)
	case ins.OpCode.JumpOp() == asm.Call:
		for r := asm.R0; r <= asm.R5; r++ {
			v[r] = value{kind: varying}
		}
	case ins.OpCode.IsDWordLoad():
		v[ins.Dst] = p.loadImmediate(ins)
	case class == asm.LdXClass:
		v[ins.Dst] = p.load(ins, v)
	case class == asm.LdClass: // of packets, as programs of sockets did: a call
		*v = unknown()
	case ins.OpCode.AtomicOp() != asm.InvalidAtomic:
		v[ins.Src], v[asm.R0] = value{kind: varying}, value{kind: varying}
	}
}

func (p *program) loadImmediate(ins *asm.Instruction) value {
	name := ins.Reference()
	switch {
	case name == "" && ins.Src == asm.R0 && !relocated(ins):
		return value{kind: constant, n: uint64(ins.Constant)}
	case name == p.name && ins.Src == asm.PseudoMapValue:
		return value{kind: pointer, n: uint64(ins.Constant) >> 32}
	}
	return value{kind: varying}
}

// load is what is loaded from memory.
func (p *program) load(ins *asm.Instruction, v *values) value {
	from := v[ins.Src]
	if from.kind != pointer || ins.OpCode.Mode() != asm.MemMode || relocated(ins) {
		return value{kind: varying}
	}
	at, size := int64(from.n)+int64(ins.Offset), int64(ins.OpCode.Size().Sizeof())
	if at < 0 || at+size > int64(len(p.data)) {
		return value{kind: varying}
	}
	var b [8]byte
	copy(b[:], p.data[at:at+size])
	return value{kind: constant, n: binary.LittleEndian.Uint64(b[:])}
}
