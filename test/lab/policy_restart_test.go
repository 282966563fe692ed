package labtest

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// verdictWays are senders and receivers under onlyFrom("only", "b2", "b1", "a2"), and whether it may.
func verdictWays() []verdictWay {
	return []verdictWay{
		{"a1", "b1", false}, {"a1", "a2", false}, {"a2", "b1", false}, {"b1", "a2", false},
		{"b2", "b1", true}, {"b2", "a2", true}, {"a1", "b2", true}, {"b2", "a1", true},
	}
}

type verdictWay struct {
	from, to string
	allowed  bool
}

// verdictLoad sends datagrams one way, each a flow of its own.
type verdictLoad struct {
	verdictWay
	family  int
	server  *net.UDPConn
	sent    uint64
	arrived atomic.Uint64
}

// wrong is how many datagrams arrived that must not, or didn't that must.
func (l *verdictLoad) wrong() uint64 {
	if l.allowed {
		return l.sent - l.arrived.Load()
	}
	return l.arrived.Load()
}

// run sends a datagram from a new socket, and so from another port, some 1,000 times a second.
func (l *verdictLoad) run(ctx context.Context, p *policed, total *atomic.Int64) error {
	to := net.UDPAddrFromAddrPort(at(p.end(l.to).addr(l.family), portOf(l.server.LocalAddr())))
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	return p.end(l.from).Do(func() error {
		for ctx.Err() == nil {
			c, err := net.ListenUDP("udp", nil)
			if err != nil {
				return err
			}
			_, err = c.WriteToUDP(binary.BigEndian.AppendUint64(nil, l.sent), to)
			if err = errors.Join(err, c.Close()); err != nil {
				return err
			}
			l.sent++
			total.Add(1)
			<-tick.C
		}
		return nil
	})
}

// count counts each number once.
func (l *verdictLoad) count() {
	seen, buf := map[uint64]bool{}, make([]byte, 64)
	for {
		n, err := l.server.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && n == 8 && !seen[binary.BigEndian.Uint64(buf)] {
			seen[binary.BigEndian.Uint64(buf)] = true
			l.arrived.Add(1)
		}
	}
}

// TestPolicyRestart kills the agents of both nodes over and over, and starts them again, while flows begin that
// policies allow and forbid: of 100,000 no verdict is wrong, with an agent or without.
//
//	┌─ node1 ────────┐  ┌─ node2 ────────┐
//	│ a1  b1   agent │  │ a2  b2   agent │     b1 and a2 are for b2 alone
//	└───────┬────────┘  └───────┬────────┘
//	════════╧═══════════════════╧═════════
func TestPolicyRestart(t *testing.T) {
	p := upLabelled(t, setup{})
	p.enforce(t, onlyFrom("only", "b2", "b1", "a2"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var total atomic.Int64
	var senders errgroup.Group
	var readers sync.WaitGroup
	var loads []*verdictLoad
	for _, f := range p.stack.families {
		for _, w := range verdictWays() {
			server, err := p.end(w.to).listenUDP(ctx, netip.AddrPortFrom(p.end(w.to).addr(f), 0), deep())
			check(t, err)
			l := &verdictLoad{verdictWay: w, family: f, server: server}
			loads = append(loads, l)
			readers.Go(l.count)
			senders.Go(func() error { return l.run(ctx, p, &total) })
		}
	}
	kills, n := 0, int64(fewer(100000))
	for end := time.Now().Add(patience(2 * time.Minute)); total.Load() < n && time.Now().Before(end) &&
		!t.Failed(); kills++ {
		p.killBoth(t)
	}
	cancel()
	check(t, senders.Wait())
	time.Sleep(patience(300 * time.Millisecond)) // what is under way arrives, wanted or not
	var wrong uint64
	for _, l := range loads {
		l.server.Close()
		if l.wrong() > 0 || l.sent == 0 {
			t.Errorf("IPv%d %s→%s, allowed %v: %d of %d arrived", l.family, l.from, l.to, l.allowed,
				l.arrived.Load(), l.sent)
		}
		wrong += l.wrong()
	}
	readers.Wait()
	if total.Load() < n || kills < 3 {
		t.Errorf("only %d flows, with %d times that both agents were killed; want %d", total.Load(), kills, n)
	}
	t.Logf("%d flows, agents killed %d times", total.Load(), kills)
	record(t, result{"policy/restart_wrong_verdicts", float64(wrong), "flows"})
}

// killBoth kills both agents, leaves the nodes without for a while, and starts them.
func (p *policed) killBoth(t *testing.T) {
	t.Helper()
	each := func(do func(node string) error) {
		var g errgroup.Group
		for _, n := range p.Nodes() {
			g.Go(func() error { return do(n.Name()) })
		}
		check(t, g.Wait())
	}
	each(func(node string) error { return p.Node(node).KillAgent(t.Context()) })
	time.Sleep(200 * time.Millisecond)
	each(func(node string) error { return p.Node(node).StartAgent(t.Context(), nil) })
	p.pass(t)
	time.Sleep(200 * time.Millisecond)
}
