package bpf

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"myelin/packet"
	"myelin/packet/packettest"
)

// fuzzWorlds are the configurations that differ most.
func fuzzWorlds(t testing.TB) []*world {
	t.Helper()
	var list []*world
	for _, s := range []Settings{settingsOf(), settingsOf(masquerading, tracking), settingsOf(masquerading, tunnel4),
		settingsOf(masquerading, legacy)} {
		s.NatPortMin, s.NatPortMax, s.Monitor, s.EventRate = 50000, 50003, 1, 10
		list = append(list, newWorld(t, s, nil))
	}
	return list
}

// places are the hooks that packets are thrown at.
func places() []string {
	return []string{"from_pod linka", "from_wire eth0", "from_pod linkb", "from_wire vx0", "to_wire eth0",
		"to_wire vx0", "to_pod linka", "from_pod other0"}
}

// allFrames are the packets of all tables.
func allFrames(t testing.TB) (frames [][]byte) {
	t.Helper()
	for _, table := range tables() {
		for _, r := range table.rows {
			for _, f := range []packet.Family{packet.IPv4, packet.IPv6} {
				if r.only != 0 && r.only != f {
					continue
				}
				for _, s := range r.steps {
					if s.in != "" {
						frames = append(frames, packettest.Frame(t, f, worldNames(), s.in))
					}
				}
			}
		}
	}
	return frames
}

// throw runs the frame through the hook, and returns what is wrong with what became of it.
func (w *world) throw(t testing.TB, at string, frame []byte) error {
	t.Helper()
	had := w.counters(t)
	s := w.step(t, 0, step{at: at})
	r, err := packettest.Run(s.Prog, frame, s.Options)
	if errors.Is(err, unix.EINVAL) {
		return nil // the kernel makes no such packet
	}
	if err != nil {
		return err
	}
	var counted []string
	answers, now := 0, w.counters(t)
	for name, o := range w.outcomes {
		for h, c := range now {
			n := int(c[o] - had[h][o])
			if name == "REPLY_ICMP" {
				answers += n
				continue
			}
			for range n {
				counted = append(counted, name)
			}
		}
	}
	if err := verify(at, counted, answers, r); err != nil {
		return fmt.Errorf("%w\nin  %s\nout %s", err, packet.Format(frame, worldNames()),
			packet.Format(r.Out, worldNames()))
	}
	return nil
}

// verify checks what holds for every packet.
func verify(at string, counted []string, answers int, r packettest.Result) error {
	hook, _, _ := strings.Cut(at, " ")
	if hook == string(ToPod) {
		if r.Ret != actOK || len(counted) != 0 {
			return fmt.Errorf("to_pod returned %d and counted %v", r.Ret, counted)
		}
		return nil
	}
	if len(counted) == 0 && hook == string(ToWire) && r.Ret == actOK {
		return nil
	}
	if len(counted) != 1 {
		return fmt.Errorf("counted %v and %d answers, want one outcome", counted, answers)
	}
	want := counted[0]
	if answers == 1 && verdict(hook, want) == actShot {
		want += " REPLY_ICMP"
	} else if answers != 0 {
		return fmt.Errorf("counted %v and %d answers", counted, answers)
	}
	if r.Ret != verdict(hook, want) {
		return fmt.Errorf("returned %d, want %d for %s", r.Ret, verdict(hook, want), want)
	}
	return verifySender(at, want, r.Out)
}

// verifySender: nothing goes on from a pod but what the pod may send, or the node in its place.
func verifySender(at, want string, out []byte) error {
	hook, device, _ := strings.Cut(at, " ")
	if hook != string(FromPod) || want[:5] == "DROP_" && verdict(hook, want) == actShot {
		return nil
	}
	if device == "other0" {
		return fmt.Errorf("%s for a link of no pod", want)
	}
	may := []string{"gw", "node", map[string]string{"linka": "a", "linkb": "b"}[device]}
	src := senderOf(out)
	if src.IsValid() && !slices.ContainsFunc(may, func(name string) bool {
		return slices.Contains(families(worldNames()[name]), src)
	}) {
		return fmt.Errorf("%s from %s", want, src)
	}
	return nil
}

// senderOf is the source address of an IP packet.
func senderOf(frame []byte) netip.Addr {
	switch {
	case len(frame) >= 34 && frame[12] == 8 && frame[13] == 0:
		return netip.AddrFrom4([4]byte(frame[26:30]))
	case len(frame) >= 54 && frame[12] == 0x86 && frame[13] == 0xdd:
		return netip.AddrFrom16([16]byte(frame[22:38]))
	}
	return netip.Addr{}
}

// FuzzHooks: whatever comes, each packet ends in exactly one outcome, is what that says, and no pod sends as another.
func FuzzHooks(f *testing.F) {
	worlds := fuzzWorlds(f)
	for i, frame := range allFrames(f) {
		f.Add(uint8(i), uint8(i/len(worlds)), frame)
	}
	f.Fuzz(func(t *testing.T, world, place uint8, frame []byte) {
		if len(frame) < 14 || len(frame) > 2000 {
			return
		}
		w := worlds[int(world)%len(worlds)]
		defer w.enter(t)()
		if err := w.throw(t, places()[int(place)%len(places())], frame); err != nil {
			t.Error(err)
		}
	})
}

// Packets of the tables with bytes changed, as often as a test may take: always the same ones.
func TestBrokenPackets(t *testing.T) {
	frames := allFrames(t)
	n := 20000
	if testing.Short() {
		n = 2000
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i, w := range fuzzWorlds(t) {
		func() {
			defer w.enter(t)()
			for range n / 4 {
				frame := spoil(random, frames[random.IntN(len(frames))])
				at := places()[random.IntN(len(places()))]
				if err := w.throw(t, at, frame); err != nil {
					t.Errorf("world %d, %s: %v", i, at, err)
				}
			}
		}()
	}
}

// spoil changes a few bytes, mostly of the headers, or the length.
func spoil(random *rand.Rand, frame []byte) []byte {
	b := slices.Clone(frame)
	for range random.IntN(4) {
		at := random.IntN(min(len(b), 100))
		if random.IntN(2) == 0 {
			b[at] ^= 1 << random.IntN(8)
		} else {
			b[at] = byte(random.Uint32())
		}
	}
	if random.IntN(4) == 0 {
		b = b[:14+random.IntN(len(b)-13)]
	}
	return b
}
