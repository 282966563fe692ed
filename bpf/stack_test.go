package bpf

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// Before kernel 6.13 all functions that are under way share one stack, and what a configuration leaves out counts as
// well (check_max_stack_depth): the programs must fit it as they are compiled.
const (
	stackSize  = 512 // bytes, MAX_BPF_STACK
	stackUnit  = 32  // what a function's part is rounded up to
	stackCalls = 8   // functions under way, MAX_CALL_FRAMES
)

// function is what it takes of the stack, and the functions that it calls.
type function struct {
	bytes int
	calls map[string]bool
}

// functionsOf are those of a program, the first of which is its entry.
func functionsOf(list asm.Instructions) (entry string, all map[string]*function) {
	all = map[string]*function{}
	var f *function
	for i, ins := range list {
		if name := ins.Symbol(); name != "" && (i == 0 || isFunction(list, name)) {
			if entry == "" {
				entry = name
			}
			f = &function{calls: map[string]bool{}}
			all[name] = f
		}
		f.bytes = max(f.bytes, stackUse(list, i))
		if ins.IsFunctionCall() {
			f.calls[ins.Reference()] = true
		}
	}
	return entry, all
}

// isFunction tells functions from labels of jumps.
func isFunction(list asm.Instructions, symbol string) bool {
	for _, ins := range list {
		if ins.IsFunctionCall() && ins.Reference() == symbol {
			return true
		}
	}
	return false
}

// stackUse is how far below the frame pointer the instruction reaches: by itself, or by making a pointer that the next
// one moves.
func stackUse(list asm.Instructions, i int) int {
	ins := list[i]
	class := ins.OpCode.Class()
	switch {
	case (class == asm.StXClass || class == asm.StClass) && ins.Dst == asm.RFP,
		class == asm.LdXClass && ins.Src == asm.RFP:
		return -int(ins.Offset)
	case class == asm.ALU64Class && ins.OpCode.ALUOp() == asm.Mov && ins.OpCode.Source() == asm.RegSource &&
		ins.Src == asm.RFP:
		for _, next := range list[i+1 : min(i+4, len(list))] {
			if next.Dst == ins.Dst && next.OpCode.Class() == asm.ALU64Class && next.OpCode.ALUOp() == asm.Add &&
				next.OpCode.Source() == asm.ImmSource {
				return -int(next.Constant)
			}
		}
	}
	return 0
}

// deepest is the way down from a function that takes most.
func deepest(all map[string]*function, name string, known map[string]string, sums map[string]int) int {
	if sum, ok := sums[name]; ok {
		return sum
	}
	f := all[name]
	below, way := 0, ""
	for c := range f.calls {
		if n := deepest(all, c, known, sums); n > below {
			below, way = n, " > "+known[c]
		}
	}
	sums[name] = below + (max(f.bytes, 1)+stackUnit-1)/stackUnit*stackUnit
	known[name] = fmt.Sprintf("%s %d%s", name, f.bytes, way)
	return sums[name]
}

func TestStackFitsOldKernels(t *testing.T) {
	spec, err := LoadDatapath()
	must(t, err)
	for name, p := range spec.Programs {
		entry, all := functionsOf(p.Instructions)
		known, sums := map[string]string{}, map[string]int{}
		if n := deepest(all, entry, known, sums); n > stackSize {
			t.Errorf("%s takes %d bytes of stack, at most %d: %s", name, n, stackSize, known[entry])
		}
		if n := strings.Count(known[entry], ">") + 1; n > stackCalls {
			t.Errorf("%s calls %d deep, at most %d: %s", name, n, stackCalls, known[entry])
		}
		if testing.Verbose() {
			t.Logf("%s %d: %s", name, sums[entry], known[entry])
		}
	}
}
