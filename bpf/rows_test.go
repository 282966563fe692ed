package bpf

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// table is packets under one configuration.
type table struct {
	name     string
	settings Settings
	rows     []row
	tweak    func(*ebpf.CollectionSpec) // changes the programs' maps before they are loaded, if not nil
}

// programs are those that the table's packets meet.
func (t table) programs() (names []string) {
	for _, r := range t.rows {
		for _, s := range r.steps {
			name, _, _ := strings.Cut(s.at, " ")
			names = append(names, name)
		}
	}
	return names
}

// row is a packet's life, or that of packets which follow each other.
type row struct {
	name  string
	only  packet.Family // 0: written for both
	since [2]int        // the oldest kernel that can do it
	steps []step
}

// step is a packet at a hook.
type step struct {
	at string // the hook and its device, such as "from_pod linka"
	in string // "" is what the step before left

	// want is the outcomes counted, one or, where an ICMP error answers, two.
	want string
	out  string // "=" is unchanged; "" is not looked at
	ret  uint32 // what the hook returns, where that is not what the outcome stands for

	ignore  []string // fields of out that may differ, as in packet.Diff
	options packettest.Options
	before  func(testing.TB, *world) // prepares the world
	after   func(testing.TB, *world) // looks at what else the step left
	check   func(packettest.Result) error
}

// one is a row with one packet.
func one(name, at, in, want, out string) row {
	return row{name: name, steps: []step{{at: at, in: in, want: want, out: out}}}
}

// routeMTU is a row that needs bpf_fib_lookup to tell a route's MTU.
func routeMTU(r row) row { r.since = [2]int{5, 12}; return r }

func only4(r row) row { r.only = packet.IPv4; return r }
func only6(r row) row { r.only = packet.IPv6; return r }

// tables are all packets, in the order of the features in datapath.c.
func tables() []table {
	return slices.Concat(forwardTables(), refuseTables(), neighbourTables(), icmpTables(), tunnelTables(),
		encryptionTables(), masqueradeTables(), masqueradeErrorTables(), serviceTables(), directTables(), floodTables(),
		synTables(), probeTables(),
		fragmentTables(), flowTables(), keptTables(), policyTables(), prefilterTables(), trustTables(), shareTables(),
		copiedTables(),
		xdpErrorTables(), quicTables(), l7Tables(), unroutedTables(),
		netkitTables(), bigTCPTables(), bandwidthTables(), fastTables())
}

// onlyPrograms leaves of the programs those that are named, and to_pod; the others do nothing. The verifier takes its
// time for each, above all in a VM.
func onlyPrograms(names ...string) func(*ebpf.CollectionSpec) {
	return func(spec *ebpf.CollectionSpec) {
		for name, p := range spec.Programs {
			if name != "to_pod" && !slices.Contains(names, name) {
				doNothing(p)
			}
		}
	}
}

// onlySockets leaves of the programs those of sockets.
func onlySockets(spec *ebpf.CollectionSpec) {
	for _, p := range spec.Programs {
		if p.Type == ebpf.SchedCLS || p.Type == ebpf.XDP {
			doNothing(p)
		}
	}
}

func doNothing(p *ebpf.ProgramSpec) {
	p.Instructions = asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}
}

func onlyForwarding(spec *ebpf.CollectionSpec) { onlyPrograms("from_pod", "from_wire")(spec) }

func (w *world) runBoth(t *testing.T, r row) {
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		if r.only != 0 && r.only != f {
			return
		}
		if slices.ContainsFunc(r.steps, func(s step) bool { return strings.HasPrefix(s.at, "from_wire_xdp ") }) {
			needsKernel(t, xdpTestRuns)
		}
		needsKernel(t, r.since)
		defer w.enter(t)()
		w.forget(t)
		w.run(t, f, r.steps...)
	})
}

// xdpTestRuns is the oldest kernel that test-runs XDP programs as if a packet came by a device.
var xdpTestRuns = [2]int{5, 15}

func needsKernel(t testing.TB, since [2]int) {
	t.Helper()
	if k := kernelVersion(t); k[0] < since[0] || k[0] == since[0] && k[1] < since[1] {
		t.Skipf("kernel %v is older than %v", k, since)
	}
}

// run runs steps on the world as it is, and returns what the last left.
func (w *world) run(t testing.TB, f packet.Family, steps ...step) packettest.Result {
	t.Helper()
	var r packettest.Result
	for i, s := range steps {
		if s.before != nil {
			s.before(t, w)
		}
		if s.in == "" {
			s.in = hexFrame(r.Out)
		}
		had := w.counters(t)
		r = packettest.Life(t, f, worldNames(), w.step(t, i, s))
		if got := w.outcomesSince(t, had); got != w.counted(s) {
			t.Fatalf("packet %d, %s, %s: counted %q, want %q\nin  %s\nout %s", i+1, s.at, f, got, w.counted(s), s.in,
				packet.Format(r.Out, worldNames()))
		}
		if s.after != nil {
			s.after(t, w)
		}
	}
	return r
}

func hexFrame(b []byte) string { return fmt.Sprintf("hex:%x", b) }

func (w *world) step(t testing.TB, i int, s step) packettest.Step {
	t.Helper()
	hook, device, _ := strings.Cut(s.at, " ")
	prog := w.program(hook)
	o := s.options
	o.Ifindex = uint32(w.index[device])
	if !w.linear {
		o.Linear = 0
	}
	if prog == nil || o.Ifindex == 0 {
		t.Fatalf("no hook or no device %q", s.at)
	}
	ret := s.ret
	if ret == 0 {
		ret = verdict(hook, s.want)
	}
	return packettest.Step{Hook: fmt.Sprintf("%s (packet %d)", s.at, i+1), Prog: prog, Options: o, In: s.in, Ret: ret,
		Out: s.out, Ignore: s.ignore, Check: s.check}
}

func (w *world) program(hook string) *ebpf.Program {
	switch Hook(hook) {
	case FromPod:
		return w.FromPod
	case ToPod:
		return w.ToPod
	case FromWire:
		return w.FromWire
	case ToWire:
		return w.ToWire
	case FromWireXDP:
		return w.FromWireXDP
	case FromProxy:
		return w.proxy.FromProxy
	}
	return nil
}

// What TC programs return, linux/pkt_cls.h.
const (
	actOK       = 0
	actShot     = 2
	actRedirect = 7
)

// What XDP programs return, linux/bpf.h.
const (
	xdpDrop     = 1
	xdpPass     = 2
	xdpTX       = 3
	xdpRedirect = 4
)

// verdict is what the hook has to return for an outcome.
func verdict(hook, want string) uint32 {
	switch {
	case Hook(hook) == FromWireXDP && want == "":
		return xdpPass
	case Hook(hook) == FromWireXDP && strings.HasPrefix(want, "DROP_"):
		return xdpDrop
	case Hook(hook) == FromWireXDP:
		return xdpTX
	case strings.Contains(want, "REPLY_"):
		return actRedirect
	case strings.HasPrefix(want, "DROP_"):
		return actShot
	case want == "" || want == "FORWARD_STACK" || hook == string(ToWire) && want != "FORWARD_ENCRYPT":
		return actOK
	}
	return actRedirect
}

// counted is a step's outcomes as outcomesSince writes them.
func (w *world) counted(s step) string {
	hook, _, _ := strings.Cut(s.at, " ")
	var list []string
	for _, o := range strings.Fields(s.want) {
		list = append(list, hook+" "+o)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// hooks by their number.
var hooks = [...]string{DatapathHookHOOK_FROM_POD: "from_pod", DatapathHookHOOK_TO_POD: "to_pod",
	DatapathHookHOOK_FROM_WIRE: "from_wire",
	DatapathHookHOOK_TO_WIRE:   "to_wire", DatapathHookHOOK_FROM_WIRE_XDP: "from_wire_xdp",
	DatapathHookHOOK_FROM_PROXY: "from_proxy"}

// outcomesSince names the counters that went up, with the number if by more than one.
func (w *world) outcomesSince(t testing.TB, had [len(hooks)]outcomeCounts) string {
	t.Helper()
	names := map[uint32]string{}
	for name, n := range w.outcomes {
		names[n] = name
	}
	var list []string
	for h, counters := range w.counters(t) {
		for o, n := range counters {
			switch d := n - had[h][o]; d {
			case 0:
			case 1:
				list = append(list, hooks[h]+" "+names[uint32(o)])
			default:
				list = append(list, fmt.Sprintf("%s %s %d times", hooks[h], names[uint32(o)], d))
			}
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// outcomesOf reads the enum from the type information of the programs, where aliases and the end don't count.
func outcomesOf(t testing.TB, spec *ebpf.CollectionSpec) map[string]uint32 {
	t.Helper()
	var enum *btf.Enum
	must(t, spec.Types.TypeByName("outcome", &enum))
	values := map[string]uint32{}
	for _, v := range enum.Values {
		if v.Name != "DROP_FIRST" && v.Name != "OUTCOMES" {
			values[v.Name] = uint32(v.Value)
		}
	}
	if len(values) < 2 {
		t.Fatalf("the enum has only %v", values)
	}
	return values
}

// Every way on and every reason to drop has a packet that takes it, and none is written that doesn't exist.
func TestEveryOutcomeHasAPacket(t *testing.T) {
	spec, err := LoadDatapath()
	must(t, err)
	missing := outcomesOf(t, spec)
	known := maps.Clone(missing)
	for _, table := range append(tables(), liveTables()...) {
		for _, r := range table.rows {
			for _, s := range r.steps {
				for _, o := range strings.Fields(s.want) {
					if _, ok := known[o]; !ok {
						t.Errorf("%s: %s: there is no outcome %s", table.name, r.name, o)
					}
					delete(missing, o)
				}
			}
		}
	}
	for o := range missing {
		t.Errorf("no packet ends in %s", o)
	}
}

// kernelVersion is the running kernel's, its first two numbers.
func kernelVersion(t testing.TB) (v [2]int) {
	t.Helper()
	var u unix.Utsname
	must(t, unix.Uname(&u))
	if n, _ := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &v[0], &v[1]); n != 2 {
		t.Fatalf("kernel release %q", u.Release)
	}
	return v
}

// outcomeCounts has a place for each outcome.
type outcomeCounts [len(DatapathCpu{}.Counters[0])]uint64

// counters sums up over the CPUs: packets by hook and outcome.
func (w *world) counters(t testing.TB) (sum [len(hooks)]outcomeCounts) {
	t.Helper()
	var cpus []DatapathCpu
	must(t, w.Cpus.Lookup(uint32(0), &cpus))
	for _, c := range cpus {
		for h := range hooks {
			for o, n := range c.Counters[h] {
				sum[h][o] += n.Packets
			}
		}
	}
	return sum
}
