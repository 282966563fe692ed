package labtest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/test/lab/oracle"
	"myelin/test/packet"
	"myelin/test/policy/reference"
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
	prefilter bool   // there is a denylist
	denylist  string // its group
	base      *reference.World
	model     *oracle.Model
	generator *oracle.Generator
	names     packet.Names
	posts     []*post
	ends      []end
	senders   map[*oracle.Place]int
	conns     map[int]bool
	fronts    []netip.AddrPort // of Services, by TCP
	slots     []slot
	lasting   []*lasting        // by slot; nil: none is open
	picks     *rand.Rand        // of lasting connections
	history   []*oracle.Attempt // of this round
	packets   int
	received  map[string]int
	wrong     []sighting
	reported  map[string]bool
	shrunk    int
	repeated  int // lasting connections, for a report
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
					z.run(t, m, total/len(seeds)/len(modes))
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

// run sends so many frames, under new policies now and then.
func (z *fuzz) run(t *testing.T, m fuzzMode, frames int) {
	begin, reported := time.Now(), 0
	for round := 0; z.packets < frames || round == 0; round++ {
		documents, w := z.policies(t)
		z.block(t, round)
		file := z.enforce(t, documents...)
		z.discard()
		z.model.Enforce(w)
		z.history = nil
		z.exchange()
		z.openLasting(t, documents)
		z.generator.Open = z.open()
		for len(z.history) < cmp.Or(m.attempts, roundAttempts) && z.packets < frames {
			z.sendBatch(t)
		}
		z.exchange()
		if m.services {
			z.checkLiving(t)
		}
		found := z.wrong[reported:]
		reported = len(z.wrong)
		z.reportPackets(t, found, documents)
		check(t, z.Delete(t.Context(), file))
		z.reportLasting(t, found, documents)
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
			if l, client := z.lastingOf(s); l != nil {
				if why := z.model.Denied(l.Connection, client); why != "" && s.TCPFlags&tcpReset == 0 {
					wrong = append(wrong, sighting{at: p.place, by: by, seen: s, why: why, lasting: l,
						frames: z.packets})
				}
				return
			}
			if p.place.Node == "" && (by != "eth0" || z.model.Attempt(s) == nil) {
				return // the world checks nothing but what it was sent
			}
			if why := z.model.Check(p.place, s); why != "" {
				wrong = append(wrong, sighting{at: p.place, by: by, seen: s, why: why,
					sent: z.model.Attempt(s), frames: z.packets})
			}
		}, func(s oracle.Seen, fd int) {
			z.received["accepted"]++
			if l, _ := z.lastingOf(s); l == nil || !l.adopt(fd) {
				z.conns[fd] = true
			}
			if why := z.model.Accepted(s.Flow); why != "" {
				wrong = append(wrong, sighting{at: p.place, by: "a TCP listener", seen: s, why: why,
					frames: z.packets})
			}
		})
	}
	return wrong
}

// discard reads all sockets, and closes connections.
func (z *fuzz) discard() {
	z.closeAll()
	time.Sleep(patience(20 * time.Millisecond))
	z.hearAll()
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
