package bpf

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"myelin/bench/results"
)

// natMaps are maps like nat_replies and nat_entries, allocated in advance or, with BPF_F_NO_PREALLOC, on demand.
func natMaps(t testing.TB, flags uint32) (maps [2]*ebpf.Map) {
	t.Helper()
	for i, value := range []uintptr{unsafe.Sizeof(DatapathNatReply{}), unsafe.Sizeof(DatapathNatEntry{})} {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: uint32(unsafe.Sizeof(DatapathNatTuple{})),
			ValueSize: uint32(value), MaxEntries: 65536, Flags: flags})
		must(t, err)
		t.Cleanup(func() { m.Close() })
		maps[i] = m
	}
	return maps
}

// inserter inserts an entry of zeros into each map, with the same random key.
func inserter(t testing.TB, maps ...*ebpf.Map) *ebpf.Program {
	t.Helper()
	key := int32(unsafe.Sizeof(DatapathNatTuple{}))
	value := key + int32(unsafe.Sizeof(DatapathNatEntry{}))
	code := asm.Instructions{asm.Mov.Imm(asm.R1, 0)}
	for at := -value; at < 0; at += 8 {
		code = append(code, asm.StoreMem(asm.RFP, int16(at), asm.R1, asm.DWord))
	}
	for at := int16(0); at < 8; at += 4 {
		code = append(code, asm.FnGetPrandomU32.Call(), asm.StoreMem(asm.RFP, int16(-key)+at, asm.R0, asm.Word))
	}
	for _, m := range maps {
		code = append(code, asm.LoadMapPtr(asm.R1, m.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -key),
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -value), asm.Mov.Imm(asm.R4, int32(ebpf.UpdateNoExist)),
			asm.FnMapUpdateElem.Call(), asm.JNE.Imm(asm.R0, 0, "failed"))
	}
	code = append(code, asm.Mov.Imm(asm.R0, xdpPass), asm.Return())
	if len(maps) > 0 {
		code = append(code, asm.Mov.Imm(asm.R0, xdpDrop).WithSymbol("failed"), asm.Return())
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: code})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// BenchmarkInsertion: what inserting the two entries of a new flow costs if they are allocated on demand, beside maps
// that are allocated in advance (ADR 30). Bursts of 4,096 flows, interleaved; medians, less the same program without
// maps.
func BenchmarkInsertion(b *testing.B) {
	const burst, rounds = 4096, 100
	advance, demand := natMaps(b, 0), natMaps(b, unix.BPF_F_NO_PREALLOC)
	progs := []*ebpf.Program{inserter(b), inserter(b, advance[:]...), inserter(b, demand[:]...)}
	took := make([][]float64, len(progs))
	for range rounds {
		for i, p := range progs {
			ret, each, err := p.Benchmark(make([]byte, 64), burst, nil)
			if must(b, err); ret != xdpPass {
				b.Fatalf("program %d returned %d", i, ret)
			}
			took[i] = append(took[i], float64(each)/float64(time.Nanosecond))
		}
		for _, m := range slices.Concat(advance[:], demand[:]) {
			deleteAll(b, m)
		}
	}
	m := make([]float64, len(took))
	for i, all := range took {
		slices.Sort(all)
		m[i] = all[len(all)/2]
	}
	r := results.Result{Name: "xdp/insert_on_demand", Value: m[2] - m[0], Unit: "ns"}.Against(m[1] - m[0])
	b.Logf("on demand %.0f ns, in advance %.0f ns: %.2f times", r.Value, r.Baseline, r.Ratio)
	if os.Getenv("MYELIN_RECORD") == "1" {
		must(b, results.Record(filepath.Join("..", "bench", "results.json"), []results.Result{r}))
	}
}

// deleteAll deletes all entries of a map of natMaps.
func deleteAll(t testing.TB, m *ebpf.Map) {
	t.Helper()
	var keys []DatapathNatTuple
	each := m.Iterate()
	value := make([]byte, m.ValueSize())
	for key := (DatapathNatTuple{}); each.Next(&key, &value); {
		keys = append(keys, key)
	}
	must(t, each.Err())
	_, err := m.BatchDelete(keys, nil)
	must(t, err)
}
