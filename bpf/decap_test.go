package bpf

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"myelin/bench/results"
	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// decapXDPRow: XDP decapsulates what a node has sent by Geneve, unless it has the option, and from_wire takes what is
// left. It leaves IPIP.
func decapXDPRow(outer, option string) row {
	const inner = ` | ip world > b ttl 60 | tcp 40000 > 8080 A | len 1000`
	unchanged := func(in string) step { return step{at: xdpAt, in: `eth node2 > node | ` + in, want: "", out: "="} }
	if !strings.Contains(outer, "geneve") {
		return row{name: "from node2, inside of another, in XDP", steps: []step{unchanged(outer + inner)}}
	}
	return row{name: "from node2, inside of another, in XDP", steps: []step{
		{at: xdpAt, in: `eth node2 > node | ` + outer + inner, want: "", out: `eth node2 > node` + inner},
		{at: "from_wire eth0", want: "FORWARD_POD",
			out: `eth gwb > b | ip world > b ttl 59 | tcp 40000 > 8080 A | len 1000`},
		{at: xdpAt, in: `eth node2 > node | ` + outer + ` | ip world > b | udp 40000 > 8080 | "odd"`, want: "",
			out: `eth node2 > node | ip world > b | udp 40000 > 8080 | "odd"`},
		unchanged(outer + ` | ` + option + ` | tcp 40000 > 8080 S`),
		unchanged(outer + ` | ip node > b | tcp 40000 > 8080 A`),
		unchanged(outer + ` | ip a > b | tcp 40000 > 8080 A`),
		unchanged(strings.Replace(outer, "node2", "world", 1) + inner),
		unchanged(strings.Replace(outer, "> node", "> lb", 1) + inner),
		unchanged(strings.Replace(outer, "vni 1", "vni 2", 1) + inner),
		unchanged(strings.Replace(outer, "6081", "6082", 1) + inner),
	}}
}

// decapRun is the start of what BPF_PROG_TEST_RUN takes and gives.
type decapRun struct {
	program, _                    uint32
	sizeIn, sizeOut               uint32
	in, out                       uint64
	repeat, duration              uint32 // ns
	contextSizeIn, contextSizeOut uint32
	contextIn, contextOut         uint64
	_                             [4]uint32
}

// timedOnce runs a program with a packet of its own, and returns what the kernel measured, in ns.
func timedOnce(t testing.TB, prog *ebpf.Program, ifindex int, frame []byte) float64 {
	t.Helper()
	var about []byte
	if prog.Type() == ebpf.SchedCLS {
		var err error
		about, err = binary.Append(nil, binary.NativeEndian, packettest.SkBuff{Ifindex: uint32(ifindex)})
		must(t, err)
	}
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(&frame[0])
	run := decapRun{program: uint32(prog.FD()), sizeIn: uint32(len(frame)), repeat: 1,
		in: uint64(uintptr(unsafe.Pointer(&frame[0])))}
	if about != nil {
		pins.Pin(&about[0])
		run.contextSizeIn, run.contextIn = uint32(len(about)), uint64(uintptr(unsafe.Pointer(&about[0])))
	}
	for {
		_, _, code := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&run)),
			unsafe.Sizeof(run))
		if code == 0 {
			return float64(run.duration)
		}
		if code != unix.EINTR {
			t.Fatal(code)
		}
	}
}

// nothing is a program that returns ret.
func nothing(t testing.TB, kind ebpf.ProgramType, ret int32) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, ret), asm.Return()}})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// decapCase is a way in which DSR sends packets to the backend's node, with what stands before or instead of the inner
// packet.
type decapCase struct {
	name, text string
	settings   Settings
	xdp        bool // XDP decapsulates
}

const decapInner = `ip world > b ttl 60 | udp 40000 > 8080 | len 64`

func decapCases(f packet.Family) []decapCase {
	outer, option := `ip4 node2 > node`, `ip4 world > b ttl 60 opts 9a080050cb007132`
	if f == packet.IPv6 {
		outer = `ip6 node2 > node`
		option = `ip6 world > b ttl 60 | dstopts body 1b1220010db8005000000000000000000050` + `00500100`
	}
	return []decapCase{
		{"option", option + ` | udp 40000 > 8080 | len 64`, settingsOf(servicing, direct), false},
		{"ipip", outer + ` | ` + decapInner, settingsOf(servicing, direct, ipip), false},
		{"geneve", outer + ` | udp 50000 > 6081 nosum | geneve vni 1 | ` + decapInner,
			settingsOf(servicing, direct, geneve), true},
	}
}

// decapTimes are medians of what programs take for a packet, in ns, less those that do nothing.
type decapTimes struct {
	bare, packed float64 // in tc, without and with what DSR adds
	pass, xdp    float64 // in XDP, which leaves the packet, and which decapsulates it
}

func (c decapCase) time(b *testing.B, f packet.Family, rounds int) decapTimes {
	b.Helper()
	w := newWorld(b, c.settings, nil)
	defer w.enter(b)()
	bare := packettest.Frame(b, f, worldNames(), `eth node2 > node | `+decapInner)
	packed := packettest.Frame(b, f, worldNames(), `eth node2 > node | `+c.text)
	idle, idleXDP := nothing(b, ebpf.SchedCLS, actOK), nothing(b, ebpf.XDP, xdpPass)
	runs := []struct {
		prog  *ebpf.Program
		frame []byte
	}{{idle, bare}, {w.FromWire, bare}, {w.FromWire, packed}, {idleXDP, packed}, {w.FromWireXDP, bare},
		{w.FromWireXDP, packed}}
	var took [6][]float64
	had := w.counters(b)
	for range rounds {
		for i, r := range runs {
			took[i] = append(took[i], timedOnce(b, r.prog, w.index["eth0"], r.frame))
		}
	}
	pods := uint64(0)
	for i, hook := range w.counters(b) {
		pods += hook[w.outcomes["FORWARD_POD"]] - had[i][w.outcomes["FORWARD_POD"]]
	}
	if pods < uint64(2*rounds*9/10) { // once a second the way is decided again
		b.Fatalf("%s: %d of %d packets came to the pod", c.name, pods, 2*rounds)
	}
	var m [6]float64
	for i, all := range took {
		slices.Sort(all)
		middle := all[len(all)/4 : len(all)*3/4] // the clock has steps of 10 ns
		for _, ns := range middle {
			m[i] += ns / float64(len(middle))
		}
	}
	return decapTimes{m[1] - m[0], m[2] - m[0], m[4] - m[3], m[5] - m[3]}
}

// BenchmarkDecapsulation: what packets with DSR's outer headers or option cost a backend's node in tc, beside the same
// packets without, and where XDP takes the outer header away (ADR 30). Runs of one packet each, interleaved.
func BenchmarkDecapsulation(b *testing.B) {
	needsKernel(b, xdpTestRuns)
	const rounds = 4000
	var list []results.Result
	for _, f := range []packet.Family{packet.IPv4, packet.IPv6} {
		for _, c := range decapCases(f) {
			t := c.time(b, f, rounds)
			b.Logf("%s %s: tc %.0f, bare %.0f; XDP %.0f, left %.0f ns", f, c.name, t.packed, t.bare, t.xdp, t.pass)
			name := fmt.Sprintf("decap_%s_%s", c.name, f)
			list = append(list, results.Result{Name: "tc/" + name, Value: t.packed, Unit: "ns"}.Against(t.bare))
			if c.xdp {
				list = append(list, results.Result{Name: "xdp/" + name, Value: t.xdp + t.bare, Unit: "ns"}.Against(
					t.pass+t.packed))
			}
		}
	}
	if os.Getenv("MYELIN_RECORD") == "1" {
		must(b, results.Record(filepath.Join("..", "bench", "results.json"), list))
	}
}
