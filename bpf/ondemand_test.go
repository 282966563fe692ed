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

// flowMap is a map like flows.
func flowMap(t testing.TB, kind ebpf.MapType, flags uint32) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: kind, KeySize: uint32(unsafe.Sizeof(DatapathFlowKey{})),
		ValueSize: uint32(unsafe.Sizeof(DatapathFlow{})), MaxEntries: 65536, Flags: flags})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// inserter inserts an entry of zeros into each map, with the same random key of 40 bytes.
func inserter(t testing.TB, maps ...*ebpf.Map) *ebpf.Program {
	t.Helper()
	key := int32(unsafe.Sizeof(DatapathNatTuple{}))
	value := key + int32(max(unsafe.Sizeof(DatapathNatEntry{}), unsafe.Sizeof(DatapathFlow{})))
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
	advance, demand := natMaps(b, 0), natMaps(b, unix.BPF_F_NO_PREALLOC)
	took := insertions(b, advance[:], demand[:])
	recordInsertion(b, results.Result{Name: "xdp/insert_on_demand", Value: took[1], Unit: "ns"}.Against(took[0]))
}

// BenchmarkFlowInsertion: the same for a conntrack entry, whose map is an LRU map (ADR 40), and with LRU lists by CPU.
func BenchmarkFlowInsertion(b *testing.B) {
	took := insertions(b, []*ebpf.Map{flowMap(b, ebpf.LRUHash, 0)},
		[]*ebpf.Map{flowMap(b, ebpf.Hash, unix.BPF_F_NO_PREALLOC)},
		[]*ebpf.Map{flowMap(b, ebpf.LRUHash, unix.BPF_F_NO_COMMON_LRU)})
	recordInsertion(b, results.Result{Name: "maps/flow_on_demand", Value: took[1], Unit: "ns"}.Against(took[0]),
		results.Result{Name: "maps/flow_distributed_lru", Value: took[2], Unit: "ns"}.Against(took[0]))
}

// insertions measures one insertion into each of several sets of maps, in nanoseconds.
func insertions(b *testing.B, sets ...[]*ebpf.Map) []float64 {
	b.Helper()
	const burst, rounds = 4096, 100
	progs := []*ebpf.Program{inserter(b)}
	for _, maps := range sets {
		progs = append(progs, inserter(b, maps...))
	}
	took := make([][]float64, len(progs))
	for range rounds {
		for i, p := range progs {
			ret, each, err := p.Benchmark(make([]byte, 64), burst, nil)
			if must(b, err); ret != xdpPass {
				b.Fatalf("program %d returned %d", i, ret)
			}
			took[i] = append(took[i], float64(each)/float64(time.Nanosecond))
		}
		for _, m := range slices.Concat(sets...) {
			deleteAll(b, m)
		}
	}
	var medians []float64
	for _, all := range took {
		slices.Sort(all)
		medians = append(medians, all[len(all)/2]-took[0][len(took[0])/2])
	}
	return medians[1:]
}

func recordInsertion(b *testing.B, list ...results.Result) {
	b.Helper()
	for _, r := range list {
		b.Logf("%s: %.0f ns, %.0f ns otherwise: %.2f times", r.Name, r.Value, r.Baseline, r.Ratio)
	}
	if os.Getenv("MYELIN_RECORD") == "1" {
		must(b, results.Record(filepath.Join("..", "bench", "results.json"), list))
	}
}

// deleteAll deletes all entries of a map with keys of 40 bytes.
func deleteAll(t testing.TB, m *ebpf.Map) {
	t.Helper()
	var keys []DatapathNatTuple // as large as DatapathFlowKey
	each := m.Iterate()
	value := make([]byte, m.ValueSize())
	for key := (DatapathNatTuple{}); each.Next(&key, &value); {
		keys = append(keys, key)
	}
	must(t, each.Err())
	_, err := m.BatchDelete(keys, nil)
	must(t, err)
}
