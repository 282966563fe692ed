// Package fold makes constants of what BPF programs load from read-only data, and removes the instructions that are
// never reached or have no effect then. The verifier removes the branches that constants decide, but leaves the loads.
//
// Programs are as clang compiles them: what is not known, such as values from the stack or operations that are rare,
// is left as it is. The verifier checks the result like any other program.
package fold

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Constants returns the instructions of a program, functions that it calls included, where a read-only map of this name
// has one value, data. It returns an error if a jump leaves the program or a function is missing.
func Constants(insns asm.Instructions, name string, data []byte) (asm.Instructions, error) {
	p := &program{insns: slices.Clone(insns), name: name, data: data}
	if err := p.split(); err != nil {
		return nil, err
	}
	if err := p.propagate(); err != nil {
		return nil, err
	}
	p.rewrite()
	p.analyze()
	return p.compact()
}

// program is what is known about the instructions of a program.
type program struct {
	insns     asm.Instructions
	name      string // of the read-only map
	data      []byte
	at        []int          // position of each instruction in units of 8 bytes, and of the end
	block     []int          // of each instruction
	following []int          // by block: the next one that is reached, -1 if there is none
	blocks    []block        // in the order of the program
	functions map[string]int // blocks by the function that begins with them
	removed   []bool         // instructions
}

// block is a sequence of instructions that is entered at its first and left at its last.
type block struct {
	first, end int    // instructions; end is not included
	jump       int    // the block that the last instruction jumps to, -1: it does not jump
	falls      bool   // the next block follows the last instruction
	in         values // registers at its beginning
	reached    bool
	queued     bool
	live       regs // that are read before they are written, by this block or by those that follow
}

// split finds the blocks.
func (p *program) split() error {
	p.at = make([]int, len(p.insns)+1)
	for i := range p.insns {
		p.at[i+1] = p.at[i] + int(p.insns[i].Width())
	}
	// Instructions by position; 0, where no jump of clang's leads to, for the second halves of long ones.
	index := make([]int, p.at[len(p.insns)])
	for i := range p.insns {
		index[p.at[i]] = i
	}
	targets := make([]int, len(p.insns))
	starts := make([]bool, len(p.insns)+1)
	for i := range p.insns {
		ins := &p.insns[i]
		targets[i] = -1
		if ins.Symbol() != "" || i == 0 {
			starts[i] = true
		}
		if !jumps(ins) {
			starts[i+1] = starts[i+1] || ends(ins)
			continue
		}
		to := p.at[i+1] + int(ins.Offset)
		if to <= 0 || to >= len(index) || index[to] == 0 || ins.Reference() != "" ||
			ins.OpCode.Class() == asm.Jump32Class && always(ins) {
			return fmt.Errorf("instruction %d (%v): no target of the jump", i, ins)
		}
		targets[i], starts[index[to]], starts[i+1] = index[to], true, true
	}
	p.makeBlocks(starts)
	for i := range p.blocks {
		b := &p.blocks[i]
		last := &p.insns[b.end-1]
		b.jump = -1
		if target := targets[b.end-1]; target >= 0 {
			b.jump = p.block[target]
		}
		b.falls = !ends(last) && !always(last)
	}
	return nil
}

// makeBlocks makes a block begin with each instruction in starts.
func (p *program) makeBlocks(starts []bool) {
	p.functions, p.block = map[string]int{}, make([]int, len(p.insns))
	n := 0
	for _, start := range starts[:len(p.insns)] {
		if start {
			n++
		}
	}
	p.blocks = make([]block, 0, n)
	for i := range p.insns {
		if starts[i] {
			p.blocks = append(p.blocks, block{first: i})
		}
		last := len(p.blocks) - 1
		p.blocks[last].end, p.block[i] = i+1, last
		if name := p.insns[i].Symbol(); name != "" {
			p.functions[name] = last
		}
	}
}

// jumps reports whether an instruction has a target, always whether that is its only successor, ends whether it has no
// successor.
func jumps(ins *asm.Instruction) bool {
	op := ins.OpCode.JumpOp()
	return op != asm.InvalidJumpOp && op != asm.Call && op != asm.Exit
}

func always(ins *asm.Instruction) bool { return ins.OpCode.JumpOp() == asm.Ja }
func ends(ins *asm.Instruction) bool   { return ins.OpCode.JumpOp() == asm.Exit }

// relocated reports whether an instruction changes before it is loaded.
func relocated(ins *asm.Instruction) bool { return btf.CORERelocationMetadata(ins) != nil }

// compact returns the instructions that are reached and not removed, with jumps to where their targets are now.
func (p *program) compact() (asm.Instructions, error) {
	at, next := make([]int, len(p.insns)+1), 0
	for i := range p.insns {
		at[i] = next
		if p.kept(i) {
			next += int(p.insns[i].Width())
		}
	}
	at[len(p.insns)] = next
	out := make(asm.Instructions, 0, len(p.insns))
	for i, ins := range p.insns {
		if !p.kept(i) {
			continue
		}
		if b := &p.blocks[p.block[i]]; jumps(&ins) {
			offset := at[p.blocks[b.jump].first] - at[i] - 1
			if int(int16(offset)) != offset {
				return nil, fmt.Errorf("instruction %d (%v): the jump is too long", i, ins)
			}
			ins.Offset = int16(offset)
		}
		out = append(out, ins)
	}
	return out, nil
}

func (p *program) kept(i int) bool { return p.blocks[p.block[i]].reached && !p.removed[i] }
