package bpf

import (
	"math/rand/v2"
	"slices"
	"testing"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// fuzzWorlds are the configurations that differ most.
func fuzzWorlds(t testing.TB) []*world {
	t.Helper()
	var list []*world
	for _, f := range []struct {
		settings Settings
		prepare  func(testing.TB, *world)
	}{
		{settingsOf(), nil}, {settingsOf(masquerading, tracking), nil},
		{settingsOf(masquerading, tunnel4, vxlanPort), nil}, {settingsOf(masquerading, legacy), nil},
		{settingsOf(masquerading, redirecting), jailsByName},
		{settingsOf(masquerading, servicing, prefiltering), takesXDP},
	} {
		s := f.settings
		s.NatPortMin, s.NatPortMax, s.Monitor, s.EventRate = 50000, 50003, 1, 10
		w := newWorld(t, s, nil)
		if f.prepare != nil {
			func() {
				defer w.enter(t)()
				f.prepare(t, w)
			}()
		}
		list = append(list, w)
	}
	return list
}

// places are the hooks that packets are thrown at. The programs of devices without a link-layer header (from_wire_l3,
// to_wire_l3, from_proxy_l3) are not among them: BPF_PROG_TEST_RUN makes every packet one with an Ethernet header, so
// that what they do before they call what the others do can be seen on real devices only (ADR 16).
func (w *world) places() []string {
	list := []string{"from_pod linka", "from_wire eth0", "from_pod linkb", "from_wire vx0", "to_wire eth0",
		"to_wire vx0", "to_pod linka", "from_pod other0"}
	if w.settings.L7 != 0 {
		list = append(list, "from_proxy proxy0")
	}
	if w.settings.Prefilter != 0 && w.takesXDP {
		list = append(list, "from_wire_xdp eth0")
	}
	return list
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
		if err := w.throw(t, w.places()[int(place)%len(w.places())], frame); err != nil {
			t.Error(err)
		}
	})
}

// Packets of the tables with bytes changed, as often as a test may take: always the same ones.
func TestBrokenPackets(t *testing.T) {
	frames := allFrames(t)
	n := 30000
	if testing.Short() {
		n = 3000
	}
	random := rand.New(rand.NewPCG(1, 2))
	worlds := fuzzWorlds(t)
	for i, w := range worlds {
		func() {
			defer w.enter(t)()
			places := w.places()
			for range n / len(worlds) {
				frame := spoil(random, frames[random.IntN(len(frames))])
				at := places[random.IntN(len(places))]
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
