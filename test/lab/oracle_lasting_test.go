package labtest

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"myelin/test/lab/oracle"
)

// Ways of lasting connections.
const (
	wayLocal   = "between pods of a node"
	wayRemote  = "between nodes"
	wayWorld   = "to the world"     // masqueraded
	wayService = "to a Service"     // from a pod, translated per packet
	wayOutside = "from the outside" // from the world to a Service
	wayTuple   = "between the ports of a packet with the option of direct server return"
)

// slot is a kind of connection of which one is kept open.
type slot struct {
	way   string
	proto uint8
	f     int // family
}

// lasting is a connection that stays open while policies change. Index 0 is its client, index 1 its server.
type lasting struct {
	oracle.Connection
	way      string
	place    [2]*oracle.Place
	front    netip.AddrPort // where the client connects to
	conn     [2]net.Conn
	listener io.Closer
	peer     netip.AddrPort // of UDP: where the server answers to
	gone     bool           // an end was reset
	denied   bool           // policies denied it for a while, so that TCP may wait before it sends again
	before   []string       // the policies under which it was opened
}

// lastingText is what both sides send.
const lastingText = "lasting\n"

// tcpReset is a flag of TCP.
const tcpReset = 4

// addSlots decides which connections a mode keeps open.
func (z *fuzz) addSlots(m fuzzMode) {
	ways := m.ways
	if ways == nil {
		ways = []string{wayLocal, wayRemote, wayWorld}
	}
	for _, way := range ways {
		for _, f := range z.stack.families {
			z.slots = append(z.slots, slot{way, oracle.TCP, f})
			if way != wayService && way != wayOutside { // UDP servers of Services are the fuzzer's posts
				z.slots = append(z.slots, slot{way, oracle.UDP, f})
			}
		}
	}
	z.lasting = make([]*lasting, len(z.slots))
	z.t.Cleanup(func() {
		for _, l := range z.lasting {
			l.close()
		}
	})
}

// openLasting opens a connection for each slot without one, of ends between which policies allow it, and some anew.
func (z *fuzz) openLasting(t *testing.T, documents []string) {
	t.Helper()
	for i, s := range z.slots {
		if l := z.lasting[i]; l != nil && !l.gone && z.picks.IntN(3) > 0 {
			continue
		}
		z.lasting[i].close()
		z.lasting[i] = nil
		for range 20 {
			l := z.candidate(s)
			if l == nil || !z.model.Opens(l.Connection) {
				continue
			}
			l.before = documents
			z.lasting[i] = l
			if err := z.connect(t, l); err != nil {
				z.hangs(l, err)
				l.close()
				z.lasting[i] = nil
			}
			break
		}
	}
}

// hangs notes that a connection does not open, or does not go on, although policies allow that.
func (z *fuzz) hangs(l *lasting, err error) {
	kind := map[uint8]string{oracle.TCP: "TCP", oracle.UDP: "UDP"}[l.Proto]
	z.wrong = append(z.wrong, sighting{at: l.place[0], by: "a " + kind + " socket", seen: oracle.Seen{Flow: l.Flow},
		why: fmt.Sprintf("nothing, although policies allow it: %v", err), lasting: l, hangs: true, frames: z.packets})
}

// candidate picks the ends of a connection; nil, if these cannot have one.
func (z *fuzz) candidate(s slot) *lasting {
	pods := slices.DeleteFunc(slices.Clone(z.model.Places), func(p *oracle.Place) bool { return !p.Pod })
	world := z.model.Places[slices.IndexFunc(z.model.Places, func(p *oracle.Place) bool { return p.Node == "" })]
	from, to := pods[z.picks.IntN(len(pods))], pods[z.picks.IntN(len(pods))]
	l := &lasting{way: s.way, Connection: oracle.Connection{Translated: s.way == wayWorld}}
	port := []uint16{81, 1024, 8081, 9090, 65535}[z.picks.IntN(5)] // policies know these, and no post has them
	switch s.way {
	case wayWorld:
		to = world
	case wayOutside:
		from = world
	}
	if s.way == wayService || s.way == wayOutside {
		l.front = z.fronts[z.picks.IntN(len(z.fronts))]
		inside := netip.PrefixFrom(serviceAddr(1, s.f), map[int]int{4: 24, 6: 64}[s.f]).Contains(l.front.Addr())
		if family(l.front.Addr()) != s.f || inside != (s.way == wayService) {
			return nil
		}
		backend := z.model.Services[oracle.Frontend{AddrPort: l.front, Proto: s.proto}][0]
		to, port = z.placeOf(backend.Addr()), backend.Port()
	}
	if from == to || s.way == wayLocal && from.Node != to.Node || s.way == wayRemote && from.Node == to.Node {
		return nil
	}
	l.place = [2]*oracle.Place{from, to}
	l.Flow = oracle.Flow{Src: z.endOf(from).addr(s.f), Dst: z.endOf(to).addr(s.f), Proto: s.proto, DPort: port}
	if !l.front.IsValid() {
		l.front = at(l.Dst, port)
	}
	return l
}

func (z *fuzz) endOf(p *oracle.Place) end { return z.ends[slices.Index(z.model.Places, p)] }

func (z *fuzz) placeOf(a netip.Addr) *oracle.Place {
	return z.model.Places[slices.IndexFunc(z.model.Places, func(p *oracle.Place) bool { return p.Has(a) })]
}

// sortFronts notes where clients reach Services by TCP.
func (z *fuzz) sortFronts() {
	for front := range z.model.Services {
		if front.Proto == oracle.TCP {
			z.fronts = append(z.fronts, front.AddrPort)
		}
	}
	slices.SortFunc(z.fronts, netip.AddrPort.Compare)
}

// again is a connection of the same ends.
func (l *lasting) again() *lasting {
	return &lasting{Connection: l.Connection, way: l.way, place: l.place, front: l.front}
}

// lastingOf finds the connection that a packet belongs to, and whether it is for the client. Attempts belong to none.
func (z *fuzz) lastingOf(s oracle.Seen) (l *lasting, client bool) {
	if s.Tagged || s.Fragment {
		return nil, false
	}
	for _, l := range z.lasting {
		if l == nil || l.SPort == 0 {
			continue
		}
		if has, client := l.Has(s.Flow); has {
			return l, client
		}
	}
	return nil, false
}

// exchange has all ends send, and notes what is received that policies deny.
func (z *fuzz) exchange() {
	for _, l := range z.lasting {
		if l != nil && !l.gone {
			l.denied = l.denied || !z.model.Opens(l.Connection)
			z.model.Goes(l.Connection)
			l.send()
		}
	}
	z.wrong = append(z.wrong, z.checked(patience(20*time.Millisecond))...)
	for _, l := range z.lasting {
		for side := range 2 {
			why := ""
			if n := l.hear(side); n > 0 {
				z.received["lasting"]++
				why = z.model.Denied(l.Connection, side == 0)
			}
			if why != "" {
				by := map[uint8]string{oracle.TCP: "a TCP socket", oracle.UDP: "a UDP socket"}[l.Proto]
				z.wrong = append(z.wrong, sighting{at: l.place[side], by: by, seen: oracle.Seen{Flow: l.Flow}, why: why,
					lasting: l, frames: z.packets})
			}
		}
	}
}

// hearAll reads what lasting connections have received.
func (z *fuzz) hearAll() {
	for _, l := range z.lasting {
		l.hear(0)
		l.hear(1)
	}
}
