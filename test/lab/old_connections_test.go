package labtest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"myelin/bpf"
)

// oldConnection is a TCP connection that was established before any policy selected one of its ends. Index 0 is the
// side that opened it, index 1 the other one.
type oldConnection struct {
	place  [2]string // pods, or "world"
	family int
	low    bool // the opener's port is below 32768 and the other one's above
	first  int  // the side that sends first after each change
	conn   [2]*net.TCPConn
	sent   [2]atomic.Int64 // bytes that a side has written
	got    [2]atomic.Int64 // bytes that a side has read
	failed [2]atomic.Pointer[error]
	denied time.Time // when a phase first denied it: since then TCP backs off, or the connection has been reset
	wrong  bool      // already counted
}

func (o *oldConnection) String() string {
	speaker := [2]string{"the opener", "the accepting side"}[o.first]
	return fmt.Sprintf("IPv%d %s→%s, %s→%s, %s speaks first", o.family, o.place[0], o.place[1],
		o.conn[0].LocalAddr(), o.conn[1].LocalAddr(), speaker)
}

// masqueraded tells the connections that only a row can lead back to their pod.
func (o *oldConnection) masqueraded() bool { return o.place[1] == "world" }

// receive counts what arrives at a side until the connection ends.
func (o *oldConnection) receive(side int) {
	buf := make([]byte, 64)
	for {
		n, err := o.conn[side].Read(buf)
		o.got[side].Add(int64(n))
		if err != nil {
			o.failed[side].Store(&err)
			return
		}
	}
}

func (o *oldConnection) send(side int) {
	o.sent[side].Add(1)
	if _, err := o.conn[side].Write([]byte{1}); err != nil {
		o.failed[side].Store(&err)
	}
}

// arrived is true where a side has received all that the other one has sent.
func (o *oldConnection) arrived(side int) bool { return o.got[side].Load() == o.sent[1-side].Load() }

func (o *oldConnection) reset() bool { return o.failed[0].Load() != nil || o.failed[1].Load() != nil }

// isolation is a NetworkPolicy for one pod and one direction, by which it may talk to these peers alone.
type isolation struct {
	pod, direction string
	peers          []string
}

func (i isolation) yaml(world []netip.Addr) string {
	var peers []string
	for _, peer := range i.peers {
		if peer != "world" {
			peers = append(peers, fmt.Sprintf("{podSelector: {matchLabels: {name: %s}}}", peer))
			continue
		}
		for _, a := range world {
			peers = append(peers, fmt.Sprintf("{ipBlock: {cidr: \"%s/%d\"}}", a, a.BitLen()))
		}
	}
	rules, field := "[]", map[string]string{"Ingress": "from", "Egress": "to"}[i.direction]
	if len(peers) > 0 {
		rules = fmt.Sprintf("[{%s: [%s]}]", field, strings.Join(peers, ", "))
	}
	key := strings.ToLower(i.direction)
	return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s-%s, namespace: "+
		"default}\n"+
		"spec:\n  podSelector: {matchLabels: {name: %s}}\n  policyTypes: [%s]\n  %s: %s\n", i.pod, key, i.pod,
		i.direction, key, rules)
}

// oldPhase is a state of the policies, or the eviction of all rows while they stay.
type oldPhase struct {
	name       string
	isolations []isolation
	evict      bool
}

// allows evaluates a connection by the side that opened it: its egress, and the ingress of the other end.
func (ph oldPhase) allows(o *oldConnection) bool {
	for _, i := range ph.isolations {
		if i.direction == "Egress" && i.pod == o.place[0] && !slices.Contains(i.peers, o.place[1]) ||
			i.direction == "Ingress" && i.pod == o.place[1] && !slices.Contains(i.peers, o.place[0]) {
			return false
		}
	}
	return true
}

// oldPhases have each pod isolated in one direction, in the other, in both, and not at all; between pods that are both
// selected, and between one that is and one that isn't.
func oldPhases() []oldPhase {
	closed := []isolation{{"v1", "Ingress", nil}}
	partly := []isolation{{"v1", "Ingress", []string{"p1"}}, {"v1", "Egress", []string{"p2", "world"}}}
	elsewhere := []isolation{{"p1", "Ingress", nil}, {"p2", "Egress", []string{"p1"}},
		{"v1", "Egress", []string{"p1", "p2"}}}
	return []oldPhase{
		{name: "without policies"},
		{name: "rows evicted, without policies", evict: true},
		{name: "v1 accepts nothing", isolations: closed},
		{name: "rows evicted, v1 accepts nothing", isolations: closed, evict: true},
		{name: "v1 accepts p1 and asks p2 and the world", isolations: partly},
		{name: "rows evicted, v1 accepts p1 and asks p2 and the world", isolations: partly, evict: true},
		{name: "p1 accepts nothing, p2 asks p1, v1 asks p1 and p2", isolations: elsewhere},
		{name: "rows evicted, p1 accepts nothing, p2 asks p1, v1 asks p1 and p2", isolations: elsewhere, evict: true},
		{name: "policies removed"},
	}
}

// oldTally is what a run found wrong.
type oldTally struct{ broken, alive, brokenMasqueraded int }

func (a oldTally) sum() int { return a.broken + a.alive + a.brokenMasqueraded }

// TestOldConnections has 1,000 connections that predate every policy, and applies, changes and removes policies, and
// evicts rows. The policies of the side that opened a connection must decide: those that are allowed go on, whichever
// side sends first; those that are denied exchange nothing more.
//
//	┌─ node1 ───────┐  ┌─ node2 ──┐
//	│ v1 ◀──▶ p1    │  │  p2      │     v1 and each of p1, p2 and the world,
//	└──┬────────────┘  └───┬──────┘     opened by either
//	═══╧═══════════════════╧══════ world
func TestOldConnections(t *testing.T) {
	t.Parallel()
	total := make(chan oldTally, 16)
	t.Run("all", func(t *testing.T) {
		for _, m := range policyModes() {
			for _, denied := range []string{"drop", "reset"} {
				if m.name != "native" && denied == "reset" {
					continue // the reset is the same in all modes
				}
				t.Run(m.name+"/"+denied, func(t *testing.T) {
					t.Parallel()
					total <- oldConnections(t, m, denied)
				})
			}
		}
	})
	close(total)
	var sum int
	for one := range total {
		sum += one.sum()
	}
	record(t, result{"trust/old_connections_wrong", float64(sum), "connections"})
}

func oldConnections(t *testing.T, m mode, denied string) (sum oldTally) {
	s := setup{mode: m, pods: []string{"v", "p"}, values: map[string]any{"myelin.policy.deniedFlows": denied}}
	p := upLabelled(t, s)
	p.routePods()
	list := p.oldConnections(fewer(1000))
	for _, phase := range oldPhases() {
		p.begin(t, phase)
		tally := p.examine(t, list, phase, denied)
		if tally.sum() > 0 {
			t.Errorf("%s: %d of %d connections are broken wrongly, %d more of those masqueraded, and %d are kept "+
				"alive wrongly",
				phase.name, tally.broken, len(list), tally.brokenMasqueraded, tally.alive)
		}
		sum.broken += tally.broken
		sum.alive += tally.alive
		sum.brokenMasqueraded += tally.brokenMasqueraded
	}
	t.Logf("%d connections: %+v", len(list), sum)
	return sum
}

// routePods has the world know the way to pods, so that it can open connections to them.
func (p *policed) routePods() {
	p.t.Helper()
	for _, node := range p.Nodes() {
		for _, prefix := range node.PodCIDRs() {
			via := node.Addrs()[slices.IndexFunc(node.Addrs(), func(a netip.Addr) bool {
				return a.Is4() == prefix.Addr().Is4()
			})]
			p.command("ip", "-n", p.World().NetnsName(), "route", "add", prefix.String(), "via", via.String())
		}
	}
}

// begin brings a phase about.
func (p *policed) begin(t *testing.T, ph oldPhase) {
	t.Helper()
	if ph.evict {
		for _, n := range p.Nodes() {
			p.evictRows(n.Name())
		}
		return
	}
	var documents []string
	for _, i := range ph.isolations {
		documents = append(documents, i.yaml(p.end("world").addrs))
	}
	file := filepath.Join(p.Manifests(), "old-connections.yaml")
	if len(documents) == 0 {
		check(t, os.RemoveAll(file))
	} else {
		check(t, replaceFile(file, strings.Join(documents, "---\n")))
	}
	p.pass(t)
}

// evictRows deletes the rows of a node's connection tracking map, as its LRU does with those that were idle. Rows of
// masqueraded connections stay: nothing but the row knows which pod a port of the node stands for, so that a peer that
// speaks first can't be answered without it (ADR 12).
func (c *cluster) evictRows(node string) {
	c.t.Helper()
	m := c.pinnedMap(node, "flows")
	defer m.Close()
	var keys [][]byte
	key, row := make([]byte, m.KeySize()), bpf.DatapathFlow{}
	rows := m.Iterate()
	for rows.Next(&key, &row) {
		if bpf.DatapathFlowFlag(row.Flags)&bpf.DatapathFlowFlagFLOW_NAT == 0 {
			keys = append(keys, slices.Clone(key))
		}
	}
	if err := rows.Err(); err != nil {
		c.t.Fatal(err)
	}
	for _, key := range keys {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			c.t.Fatal(err)
		}
	}
}

// oldConnections opens n connections: between v1 and each of its peers, opened by either, in both families, with the
// lower port at either side, and with either side to speak first.
func (p *policed) oldConnections(n int) (list []*oldConnection) {
	p.t.Helper()
	listeners := map[string]*net.TCPListener{}
	peers := []string{"p1", "p2", "world"}
	for i := range n {
		o := &oldConnection{place: [2]string{"v1", peers[i%3]}, family: p.stack.families[i/3%len(p.stack.families)]}
		if i/6%2 == 1 {
			o.place[0], o.place[1] = o.place[1], o.place[0]
		}
		o.low, o.first = i/12%2 == 1, i/24%2
		p.open(o, i, listeners)
		list = append(list, o)
	}
	return list
}

// Ports of servers: one that looks like a server's, and one that looks like a client's.
const (
	usualPort   = 443
	unusualPort = 42000
)

// open establishes a connection, the i-th, and starts its readers.
func (p *policed) open(o *oldConnection, i int, listeners map[string]*net.TCPListener) {
	p.t.Helper()
	opener, target := p.end(o.place[0]), p.end(o.place[1])
	from, port := at(opener.addr(o.family), 0), uint16(usualPort)
	if o.low {
		from, port = at(opener.addr(o.family), uint16(1100+i)), unusualPort
	}
	to := at(target.addr(o.family), port)
	l := listeners[o.place[1]+to.String()]
	if l == nil {
		var err error
		l, err = target.listenTCP(p.t.Context(), to)
		check(p.t, err)
		p.t.Cleanup(func() { l.Close() })
		listeners[o.place[1]+to.String()] = l
	}
	client, err := opener.dialTCP(p.t.Context(), from, to)
	check(p.t, err)
	check(p.t, l.SetDeadline(soon()))
	server, err := l.AcceptTCP()
	check(p.t, err)
	p.t.Cleanup(func() { client.Close(); server.Close() })
	o.conn = [2]*net.TCPConn{client, server}
	for side := range 2 {
		go o.receive(side)
	}
}

// examine has every connection talk, and compares with what the phase allows. A connection is counted once.
func (p *policed) examine(t *testing.T, list []*oldConnection, ph oldPhase, denied string) (sum oldTally) {
	var allowed, forbidden []*oldConnection
	before := map[*oldConnection][2]int64{}
	for _, o := range list {
		switch {
		case o.wrong || !o.denied.IsZero() && denied == "reset":
		case ph.allows(o):
			allowed = append(allowed, o)
		default:
			forbidden = append(forbidden, o)
			before[o] = [2]int64{o.got[0].Load(), o.got[1].Load()}
		}
	}
	for _, o := range forbidden {
		if o.denied.IsZero() {
			o.denied = time.Now()
		}
		o.send(0)
		o.send(1)
	}
	silence := time.Now().Add(patience(700 * time.Millisecond)) // the first transmission, and two more
	examples := map[string]int{}
	wrong := func(o *oldConnection, count *int, what string) {
		*count++
		o.wrong = true
		if examples[what]++; examples[what] <= 3 {
			t.Logf("%s: %s %s", ph.name, o, what)
		}
	}
	for _, o := range p.unheard(allowed) {
		count, what := &sum.broken, fmt.Sprintf("is broken (reset: %t)", o.reset())
		if o.masqueraded() {
			count = &sum.brokenMasqueraded
		}
		wrong(o, count, what)
	}
	time.Sleep(time.Until(silence))
	for _, o := range forbidden {
		if got := [2]int64{o.got[0].Load(), o.got[1].Load()}; got != before[o] {
			wrong(o, &sum.alive, "is kept alive")
		}
	}
	return sum
}

// recovery is how long an allowed connection may take to get a segment across: two retransmissions, and where TCP has
// backed off, as long again as the connection was denied, since each interval is twice the one before.
func (o *oldConnection) recovery() time.Duration {
	if o.denied.IsZero() {
		return patience(3 * time.Second)
	}
	return patience(3*time.Second) + time.Since(o.denied)
}

// unheard has one side of each connection send, then the other one, and returns those of which not all has arrived.
func (p *policed) unheard(list []*oldConnection) (left []*oldConnection) {
	ends := map[*oldConnection]time.Time{}
	for turn := range 2 {
		for _, o := range list {
			ends[o] = time.Now().Add(o.recovery())
			o.send((o.first + turn) % 2)
		}
		for waiting := list; len(waiting) > 0; time.Sleep(10 * time.Millisecond) {
			waiting = slices.DeleteFunc(slices.Clone(waiting), func(o *oldConnection) bool {
				broken := !o.arrived(1-(o.first+turn)%2) && (o.reset() || time.Now().After(ends[o]))
				if broken {
					left = append(left, o)
				}
				return broken || o.arrived(1-(o.first+turn)%2)
			})
		}
		list = slices.DeleteFunc(slices.Clone(list), func(o *oldConnection) bool { return slices.Contains(left, o) })
	}
	return left
}
