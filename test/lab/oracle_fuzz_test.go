package labtest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/packet"
	"myelin/policy/reference"
	"myelin/test/lab/oracle"
)

// Environment of the fuzzer.
const (
	envPackets = "MYELIN_ORACLE_PACKETS" // frames to send in all; 100,000
	envSeed    = "MYELIN_ORACLE_SEED"    // the only seed; else a fixed one, and with envPackets one at random
	envMode    = "MYELIN_ORACLE_MODE"    // the only mode
)

// batch is how many attempts are sent before sockets are read.
const batch = 128

// roundAttempts is how many attempts are made under the same policies.
const roundAttempts = 2500

// fuzz sends what a generator makes up, and has a model check what sockets receive.
type fuzz struct {
	*arena
	r         *rand.Rand
	seed      uint64
	name      string // of the mode
	hosts     bool   // nodes have policies
	base      *reference.World
	model     *oracle.Model
	generator *oracle.Generator
	names     packet.Names
	posts     []*post
	ends      []end
	senders   map[*oracle.Place]int
	conns     map[int]bool
	history   []*oracle.Attempt // of this round
	packets   int
	received  map[string]int
	wrong     []sighting
	reported  map[string]bool
	shrunk    int
}

// fuzzMode is a cluster to fuzz.
type fuzzMode struct {
	name, mode string
	values     map[string]any
	services   bool
}

func fuzzModes() []fuzzMode {
	direct := perPacket()
	direct["loadBalancer.mode"] = "dsr"
	geneve := maps.Clone(direct)
	geneve["loadBalancer.dsrDispatch"] = "geneve"
	return []fuzzMode{
		{"native", "native", nil, false},
		{"host", "native", map[string]any{"hostFirewall.enabled": true}, false},
		{"vxlan", "vxlan", nil, false},
		{"dsr", "native", direct, true},
		{"geneve", "native", geneve, true},
	}
}

// TestOracle sends packets that are made up to pods, nodes and the world, under policies that are made up: whatever a
// socket receives, the reference allows.
//
//	┌─ node1 ─────────┐  ┌─ node2 ─────────┐
//	│ p0 p2 p4 p6     │  │ p1 p3 p5 p7     │
//	└────────┬────────┘  └────────┬────────┘
//	═════════╧════════════════════╧═════════ world       each pod, node2 and the world send; each hears
func TestOracle(t *testing.T) {
	seeds := []uint64{13, rand.Uint64() % 1e6}
	if text := os.Getenv(envSeed); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		check(t, err)
		seeds = []uint64{seed}
	}
	if testing.Short() || os.Getenv(envPackets) == "" {
		seeds = seeds[:1] // the ring repeats what it did before; long runs look for more
	}
	total := fewer(100_000)
	if text := os.Getenv(envPackets); text != "" {
		n, err := strconv.Atoi(text)
		check(t, err)
		total = n
	}
	var packets, violations atomic.Int64
	t.Run("modes", func(t *testing.T) {
		modes := slices.DeleteFunc(fuzzModes(), func(m fuzzMode) bool {
			return os.Getenv(envMode) != "" && os.Getenv(envMode) != m.name
		})
		for _, seed := range seeds {
			for _, m := range modes {
				t.Run(fmt.Sprintf("%s/%d", m.name, seed), func(t *testing.T) {
					t.Parallel()
					z := upMode(t, m, seed)
					z.run(t, total/len(seeds)/len(modes))
					packets.Add(int64(z.packets))
					violations.Add(int64(len(z.wrong)))
				})
			}
		}
	})
	t.Logf("%d frames, %d violations", packets.Load(), violations.Load())
	if os.Getenv(envPackets) != "" {
		record(t, result{"trust/oracle_packets", float64(packets.Load()), "packets"},
			result{"trust/oracle_violations", float64(violations.Load()), "packets"})
	}
}

// upMode brings a mode's cluster up.
func upMode(t *testing.T, m fuzzMode, seed uint64) *fuzz {
	t.Helper()
	values := map[string]any{"cluster.name": "a"}
	maps.Copy(values, m.values)
	z := upFuzz(t, setup{mode: modeNamed(m.mode), values: values}, seed)
	z.name, z.hosts = m.name, values["hostFirewall.enabled"] != nil
	z.senders, z.received, z.reported = map[*oracle.Place]int{}, map[string]int{}, map[string]bool{}
	for i, p := range z.model.Places {
		check(t, z.ends[i].Do(func() (err error) {
			z.senders[p], err = packetSender()
			return err
		}))
	}
	t.Cleanup(func() {
		for _, fd := range z.senders {
			unix.Close(fd)
		}
	})
	if m.services {
		z.addServices(t)
	}
	return z
}

// packetSender opens a socket that sends frames by eth0 and receives none.
func packetSender() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	eth0, err := linkIndex("eth0")
	if err != nil {
		return -1, err
	}
	return fd, unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: eth0})
}

// addServices has Services lead to half of the pods, two to one of them, at addresses in the cluster and outside.
func (z *fuzz) addServices(t *testing.T) {
	t.Helper()
	z.model.Services = map[oracle.Frontend][]netip.AddrPort{}
	for i, k := range []int{0, 1, 2, 3, 0} {
		pod, n, name := z.base.Pods[k], 60+i, fmt.Sprintf("svc%d", i)
		here := "metadata: {namespace: " + pod.Namespace + ", name"
		yaml := strings.Replace(z.outsideYAML(name, n, ""), "metadata: {name", here, 1)
		yaml = strings.NewReplacer("targetPort: 7001", "targetPort: 53").Replace(yaml)
		for _, ip := range pod.Status.PodIPs {
			a := netip.MustParseAddr(ip.IP)
			slice := strings.Replace(sliceYAML(name, family(a)), "metadata: {name", here, 1)
			yaml += strings.Replace(slice, "port: 7001", "port: 53", 1) + endpointYAML(a, pod.Spec.NodeName) + "---\n"
		}
		z.apply(name, yaml)
		for _, ip := range pod.Status.PodIPs {
			z.addFrontends(n, netip.MustParseAddr(ip.IP))
		}
	}
}

// addFrontends notes where a Service of a pod is reached.
func (z *fuzz) addFrontends(n int, pod netip.Addr) {
	f := family(pod)
	z.generator.Services = append(z.generator.Services, at(serviceAddr(n, f), 53), at(serviceAddr(n, f), 80),
		at(lbAddr(n, f), 80), at(nodeAddr(1, f), uint16(30000+n)), at(nodeAddr(2, f), uint16(30500+n)))
	fronts := map[uint8][]netip.AddrPort{
		oracle.TCP: {at(serviceAddr(n, f), 80), at(lbAddr(n, f), 80)},
		oracle.UDP: {at(serviceAddr(n, f), 53), at(lbAddr(n, f), 53)},
	}
	for node := 1; node <= 2; node++ {
		fronts[oracle.TCP] = append(fronts[oracle.TCP], at(nodeAddr(node, f), uint16(30000+n)))
		fronts[oracle.UDP] = append(fronts[oracle.UDP], at(nodeAddr(node, f), uint16(30500+n)))
	}
	for proto, port := range map[uint8]uint16{oracle.TCP: 8080, oracle.UDP: 53} {
		for _, front := range fronts[proto] {
			z.model.Services[oracle.Frontend{AddrPort: front, Proto: proto}] = []netip.AddrPort{at(pod, port)}
		}
	}
}

// run sends so many frames, under new policies now and then.
func (z *fuzz) run(t *testing.T, frames int) {
	begin, reported := time.Now(), 0
	for round := 0; z.packets < frames && !t.Failed() || round == 0; round++ {
		documents, w := z.policies(t)
		file := z.enforce(t, documents...)
		z.discard()
		z.model.Enforce(w)
		z.history = nil
		for len(z.history) < roundAttempts && z.packets < frames {
			z.sendBatch(t)
		}
		for _, s := range z.wrong[reported:] {
			z.report(t, s, documents)
		}
		reported = len(z.wrong)
		check(t, z.Delete(t.Context(), file))
	}
	took := time.Since(begin).Round(time.Millisecond)
	t.Logf("seed %d: %d frames in %v; %v; %d violations", z.seed, z.packets, took, z.received, len(z.wrong))
}

// sendBatch makes some attempts, and has what was received checked.
func (z *fuzz) sendBatch(t *testing.T) {
	t.Helper()
	z.dial(t)
	for range batch {
		a := z.generator.Next()
		z.model.Sent(a)
		z.history = append(z.history, a)
		z.send(a)
	}
	z.wrong = append(z.wrong, z.checked(0)...)
}

func (z *fuzz) send(a *oracle.Attempt) {
	for _, frame := range a.Frames {
		_, _ = unix.Write(z.senders[a.From], frame) // a frame may be longer than the device takes
		z.packets++
	}
}

// checked reads all sockets, and returns what should not have been received.
func (z *fuzz) checked(wait time.Duration) (wrong []sighting) {
	time.Sleep(wait)
	for _, p := range z.posts {
		p.collect(func(by string, s oracle.Seen) {
			z.received[by]++
			if p.place.Node == "" && (by != "eth0" || z.model.Attempt(s) == nil) {
				return // the world checks nothing but what it was sent
			}
			if why := z.model.Check(p.place, s); why != "" {
				wrong = append(wrong, sighting{p.place, by, s, why, z.model.Attempt(s)})
			}
		}, func(s oracle.Seen, fd int) {
			z.received["accepted"]++
			z.conns[fd] = true
			if why := z.model.Accepted(s.Flow); why != "" {
				wrong = append(wrong, sighting{p.place, "a TCP listener", s, why, nil})
			}
		})
	}
	return wrong
}

// discard reads all sockets, and closes connections.
func (z *fuzz) discard() {
	z.closeAll()
	time.Sleep(patience(20 * time.Millisecond))
	for _, p := range z.posts {
		p.collect(func(string, oracle.Seen) {}, func(_ oracle.Seen, fd int) { z.conns[fd] = true })
	}
	z.closeAll()
}

// closeAll resets all connections, so that nothing of them goes on under other policies.
func (z *fuzz) closeAll() {
	for fd := range z.conns {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		unix.Close(fd)
	}
	clear(z.conns)
}

// dial has the kernel of some place open connections to others.
func (z *fuzz) dial(t *testing.T) {
	t.Helper()
	from := z.ends[z.r.IntN(len(z.ends))]
	check(t, from.Do(func() error {
		for range 4 {
			f, to := 4+2*z.r.IntN(2), z.ends[z.r.IntN(len(z.ends))]
			port, own := postPorts()[z.r.IntN(len(postPorts()))], uint16(10000+z.r.IntN(20000))
			fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				return err
			}
			z.conns[fd] = true
			src, dst := from.addr(f), to.addr(f)
			// Another socket may have the port; the connection is in progress, or refused.
			_ = unix.Bind(fd, &unix.SockaddrInet6{Addr: src.As16(), Port: int(own)})
			_ = unix.Connect(fd, &unix.SockaddrInet6{Addr: dst.As16(), Port: int(port)})
			flow := oracle.Flow{Src: src, Dst: dst, Proto: oracle.TCP, SPort: own, DPort: port}
			z.model.Dialled(flow)
			z.generator.Remember(flow)
		}
		return nil
	}))
	if len(z.conns) > 256 {
		z.closeAll()
	}
}

// linkIndex is a device's in the namespace of the calling thread.
func linkIndex(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request)
	return int(request.Uint32()), err
}

// report prints a violation of a kind that was not seen before, and the fewest packets that show it again.
func (z *fuzz) report(t *testing.T, s sighting, documents []string) {
	t.Helper()
	a, what := s.sent, s.by
	if a != nil {
		what += " " + a.Kind
	}
	what += " " + strings.Join(strings.Fields(s.why)[:4], " ")
	if z.reported[what] || z.shrunk >= 5 {
		return
	}
	z.reported[what] = true
	z.shrunk++
	t.Errorf("%s of %s received %s: %s", s.by, s.at.Name, s.seen.Flow, s.why)
	text := z.replayText(a)
	t.Logf("%s=%d %s=%s; packets and policies:\n%s\n%s",
		envSeed, z.seed, envMode, z.name, text, strings.Join(documents, "---\n"))
}

// replayText are the packets by which it happens again.
func (z *fuzz) replayText(a *oracle.Attempt) string {
	if a == nil {
		return "(no packet of the fuzzer's)\n"
	}
	list := oracle.Shrink(z.history, a, z.again)
	if list == nil {
		return "it did not happen again; the packet was\n" + a.Text(z.names)
	}
	var text strings.Builder
	for _, each := range list {
		text.WriteString(each.Text(z.names))
	}
	return text.String()
}

// again sends attempts anew, to a datapath that knows no flow, and says whether something of the last one is received
// that should not be.
func (z *fuzz) again(list []*oracle.Attempt) bool {
	z.flush()
	z.discard()
	z.model.Restart()
	for i, a := range list {
		z.model.Sent(a)
		z.send(a)
		if i%batch == batch-1 {
			z.checked(0)
		}
	}
	last := list[len(list)-1]
	return slices.ContainsFunc(z.checked(patience(20*time.Millisecond)), func(s sighting) bool {
		return s.sent == last
	})
}
