package labtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// losses is what a load has to complain of.
type losses struct {
	packets     int
	connections int
}

func (l *losses) add(m losses) {
	l.packets += m.packets
	l.connections += m.connections
}

// load is traffic that runs while a test does something else: TCP streams that echo, and UDP with sequence numbers.
type load struct {
	cluster *cluster
	cancel  context.CancelFunc
	streams []*streamLoad
	counts  []*countLoad
}

// streamLoad is one TCP connection: blocks go and come back.
type streamLoad struct {
	name   string
	blocks atomic.Int64
	ended  chan error
}

// countLoad is datagrams with numbers, sent at a rate, answered by the other side.
type countLoad struct {
	name     string
	begin    time.Time
	sent     atomic.Int64
	arrived  arrivals // at the other side
	answered arrivals
	client   *net.UDPConn
	ended    chan error
}

// arrivals are the numbers of datagrams that have arrived, each once. It is safe for concurrent use.
type arrivals struct {
	mu    sync.Mutex
	next  int64          // all below have arrived
	later map[int64]bool // those that have arrived above it
}

func (a *arrivals) add(number int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if number < a.next || a.later[number] {
		return
	}
	if a.later == nil {
		a.later = map[int64]bool{}
	}
	a.later[number] = true
	for ; a.later[a.next]; a.next++ {
		delete(a.later, a.next)
	}
}

// missing are the numbers below one that have not arrived.
func (a *arrivals) missing(below int64) (list []int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for n := a.next; n < below; n++ {
		if !a.later[n] {
			list = append(list, n)
		}
	}
	return list
}

// rate is datagrams a second, of each UDP exchange.
const rate = 1000

// startLoad starts 8 TCP streams and UDP exchanges over three ways, both families taking turns.
func startLoad(c *cluster) *load {
	ctx, cancel := context.WithCancel(c.t.Context())
	l := &load{cluster: c, cancel: cancel}
	c.t.Cleanup(cancel)
	pairs := [][2]string{{"a1", "b1"}, {"a1", "a2"}, {"a1", "world"}}
	for i := range 8 {
		pair := pairs[i%len(pairs)]
		l.stream(ctx, pair[0], pair[1], c.stack.families[i/len(pairs)%len(c.stack.families)])
	}
	for i, pair := range pairs {
		l.count(ctx, pair[0], pair[1], c.stack.families[i%len(c.stack.families)])
	}
	return l
}

func (l *load) stream(ctx context.Context, from, to string, family int) {
	a, b := l.cluster.end(from), l.cluster.end(to)
	client, server, err := connect(ctx, a, b, netip.AddrPort{}, at(b.addr(family), 0))
	if err != nil {
		l.cluster.t.Fatal(err)
	}
	s := &streamLoad{name: fmt.Sprintf("IPv%d TCP %s→%s", family, from, to), ended: make(chan error, 1)}
	l.streams = append(l.streams, s)
	go func() { _, _ = io.Copy(server, server) }() // its end is the client's
	go func() {
		s.ended <- s.run(ctx, client)
		client.Close()
		server.Close()
	}()
}

// run sends blocks, each after the one before has come back. A connection that stands still is as good as broken.
func (s *streamLoad) run(ctx context.Context, c net.Conn) error {
	block, back := make([]byte, 16<<10), make([]byte, 16<<10)
	for ctx.Err() == nil {
		if err := c.SetDeadline(soon()); err != nil {
			return err
		}
		n := s.blocks.Add(1)
		binary.LittleEndian.PutUint64(block, uint64(n))
		if _, err := c.Write(block); err != nil {
			return fmt.Errorf("block %d: %w", n, err)
		}
		if _, err := io.ReadFull(c, back); err != nil {
			return fmt.Errorf("block %d: %w", n, err)
		}
		if binary.LittleEndian.Uint64(back) != uint64(n) {
			return fmt.Errorf("block %d comes back as another", n)
		}
		time.Sleep(2 * time.Millisecond) // the processors are for the agents, too
	}
	return nil
}

func (l *load) count(ctx context.Context, from, to string, family int) {
	t := l.cluster.t
	a, b := l.cluster.end(from), l.cluster.end(to)
	client, server, err := connectUDP(ctx, a, b, b.addr(family), []option{deep()}, []option{deep()})
	if err != nil {
		t.Fatal(err)
	}
	u := &countLoad{name: fmt.Sprintf("IPv%d UDP %s→%s", family, from, to), begin: time.Now(), client: client,
		ended: make(chan error, 1)}
	l.counts = append(l.counts, u)
	t.Cleanup(func() { server.Close(); client.Close() })
	go u.answer(server)
	go u.listen(client)
	go func() { u.ended <- u.run(ctx, client) }()
}

// answer counts each number once, and sends it back.
func (u *countLoad) answer(c *net.UDPConn) {
	buf := make([]byte, 64)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return // closed
		}
		if n == len(buf) {
			u.arrived.add(int64(binary.LittleEndian.Uint64(buf)))
		}
		_, _ = c.WriteToUDPAddrPort(buf[:n], from) // a loss shows at the other end
	}
}

func (u *countLoad) listen(c *net.UDPConn) {
	buf := make([]byte, 64)
	for {
		n, err := c.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && n == len(buf) {
			u.answered.add(int64(binary.LittleEndian.Uint64(buf)))
		}
	}
}

// run sends at the rate, catching up after it was not scheduled.
func (u *countLoad) run(ctx context.Context, c net.Conn) error {
	buf := make([]byte, 64)
	for ctx.Err() == nil {
		for due := int64(time.Since(u.begin).Seconds() * float64(rate/slow())); u.sent.Load() < due; {
			n := u.sent.Load()
			binary.LittleEndian.PutUint64(buf, uint64(n))
			if _, err := c.Write(buf); err != nil {
				return fmt.Errorf("datagram %d: %w", n, err)
			}
			u.sent.Add(1)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// settled says what was lost or broken so far. It waits for packets under way, and until every stream has moved.
func (l *load) settled() error {
	for _, s := range l.streams {
		if err := s.moves(); err != nil {
			return err
		}
	}
	for _, u := range l.counts {
		if err := u.whole(); err != nil {
			return err
		}
	}
	return nil
}

func (s *streamLoad) moves() error {
	before := s.blocks.Load()
	for end := soon(); time.Now().Before(end); time.Sleep(time.Millisecond) {
		select {
		case err := <-s.ended:
			s.ended <- err
			return fmt.Errorf("%s: %w", s.name, errOr(err, "ended"))
		default:
		}
		if s.blocks.Load() > before+1 {
			return nil
		}
	}
	return fmt.Errorf("%s: %w after block %d", s.name, os.ErrDeadlineExceeded, before)
}

// whole waits until everything sent before it was called has arrived and was answered.
func (u *countLoad) whole() error {
	sent := u.sent.Load()
	for end := soon(); time.Now().Before(end); time.Sleep(time.Millisecond) {
		select {
		case err := <-u.ended:
			u.ended <- err
			return fmt.Errorf("%s: %w", u.name, errOr(err, "ended"))
		default:
		}
		if u.sent.Load() > sent && len(u.answered.missing(sent)) == 0 {
			return nil
		}
	}
	there, back := u.arrived.missing(sent), u.answered.missing(sent)
	return fmt.Errorf("%s: %d of %d datagrams lost on the way there: %s; %d without an answer: %s", u.name, len(there),
		sent, u.due(there), len(back), u.due(back))
}

// due says which datagrams these are, in runs without a gap, and when the first and last of each were due to be sent.
func (u *countLoad) due(numbers []int64) string {
	at := func(n int64) string {
		return u.begin.Add(time.Duration(n) * time.Second / time.Duration(rate/slow())).UTC().Format("15:04:05.000")
	}
	var text []string
	for first := 0; first < len(numbers) && len(text) < 10; {
		last := first
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		one := fmt.Sprintf("%d at %s", numbers[first], at(numbers[first]))
		if last > first {
			one += fmt.Sprintf(" to %d at %s", numbers[last], at(numbers[last]))
		}
		text, first = append(text, one), last+1
	}
	return strings.Join(text, ", ")
}

// logCounters prints what counts packets that are lost: devices, sockets, processors, and the datapath.
func (c *cluster) logCounters() {
	c.t.Helper()
	const counters = "ip -s link; cd /proc/net; cat snmp snmp6 udp udp6 softnet_stat; " +
		"[ ! -e xfrm_stat ] || cat xfrm_stat"
	for _, at := range []string{"node1", "node2", "a1", "a2"} {
		out, err := c.shellIn(at, counters)
		c.t.Logf("%s: %s %v", at, out, err)
	}
	for _, node := range []string{"node1", "node2"} {
		out, err := c.cli(node, "drops")
		log, err2 := os.ReadFile(c.Node(node).AgentLog())
		c.t.Logf("%s: %s %s %v", node, out, log, errors.Join(err, err2))
	}
}

// shellIn runs a command in the network namespace of a node or pod.
func (c *cluster) shellIn(at, command string) (string, error) {
	var out []byte
	err := c.end(at).Do(func() (err error) {
		out, err = exec.CommandContext(c.t.Context(), "sh", "-c", command).CombinedOutput()
		return err
	})
	return string(out), err
}

// stop ends the load and returns what was lost in all.
func (l *load) stop() (total losses) {
	l.cancel()
	for _, s := range l.streams {
		if err := <-s.ended; err != nil {
			total.connections++
			l.cluster.t.Errorf("%s: %v", s.name, err)
		}
	}
	for _, u := range l.counts {
		if err := <-u.ended; err != nil {
			total.connections++
			l.cluster.t.Errorf("%s: %v", u.name, err)
		}
		sent := u.sent.Load()
		for end := soon(); len(u.answered.missing(sent)) > 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		lost := u.answered.missing(sent)
		total.packets += len(lost)
		l.cluster.t.Logf("%s: %d datagrams, %d lost: %s", u.name, sent, len(lost), u.due(lost))
	}
	return total
}
