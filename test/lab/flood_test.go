package labtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What a flood is aimed at, and where it comes from.
const (
	floodPort    = 7777
	floodService = 30 // b2; its node port is 30000 + this
)

// nowhere is a prefix that the world routes to nothing, silently.
func nowhere(family int) netip.Prefix {
	return netip.MustParsePrefix(map[int]string{4: "198.18.0.0/15", 6: "2001:db8:18::/48"}[family])
}

// nowhereAddr is the i-th address of it.
func nowhereAddr(family, i int) netip.Addr {
	raw := nowhere(family).Addr().AsSlice()
	tail := raw[len(raw)-4:]
	binary.BigEndian.PutUint32(tail, binary.BigEndian.Uint32(tail)+uint32(i%(1<<17)))
	a, _ := netip.AddrFromSlice(raw) // of 4 or 16 bytes, always
	return a
}

// flood is something that one pod, or the world, does to all others.
type flood struct {
	name    string
	family  int // of the short form; the long one does both
	packets int
	over    time.Duration
	long    time.Duration
	from    string
	begin   func(f *flooded, family int) sending
	ports   string // the node's range for NAT, where one of the usual size can't be used up by this process's sockets
	table   string // it makes a pod's entries of this table, and status names the pod; empty: of none
}

func floods() []flood {
	return []flood{
		{"spoofed SYNs to a NodePort", 4, 30_000, 3 * time.Second, 10 * time.Second, "world", (*flooded).spoofedSYNs,
			"", ""},
		{"SYNs of one pod to one server", 6, 40_000, 3 * time.Second, 10 * time.Second, "a1", (*flooded).podSYNs,
			"", "flows"},
		{"UDP of one pod to one server", 4, 60_000, 4 * time.Second, 10 * time.Second, "a1", (*flooded).podUDP,
			"", "flows"},
		{"connections of one pod to one server", 4, 4_000, 3 * time.Second, 3 * time.Second, "a1",
			(*flooded).podConnections, "28000-29999", "flows"},
		{"UDP flows of one pod", 6, 150_000, 5 * time.Second, 10 * time.Second, "a1", (*flooded).podFlows, "",
			"flows"},
		{"fragments of one pod", 4, 60_000, 4 * time.Second, 10 * time.Second, "a1", (*flooded).podFragments,
			"", "fragments"},
	}
}

// TestFloods floods a node, and looks whether others notice: during a flood at least 99 % of the new connections of
// other pods and of clients outside succeed, all established ones go on, idle or not, and within 5 s after it all is
// well. The flood is longer, and comes in both families, with MYELIN_RECORD=1.
//
//	┌─ node1 ────────────┐  ┌─ node2 ─────┐
//	│ a1 floods, b1 not  │  │ b2          │   b1→world, b1→b2, world→NodePort of node1→b2
//	└─────────┬──────────┘  └──────┬──────┘
//	══════════╧════════════════════╧══════ world: a server; floods too
func TestFloods(t *testing.T) {
	t.Parallel()
	results := make(chan floodResult, 16)
	t.Run("all", func(t *testing.T) {
		for _, fl := range floods() {
			families := []int{fl.family}
			if os.Getenv(envRecord) == "1" {
				families = []int{4, 6}
				fl.packets, fl.over = int(int64(fl.packets)*int64(fl.long)/int64(fl.over)), fl.long
			}
			for _, family := range families {
				t.Run(fmt.Sprintf("%s/ipv%d", fl.name, family), func(t *testing.T) {
					t.Parallel()
					results <- fl.run(t, family)
				})
			}
		}
	})
	close(results)
	var worst floodResult
	for r := range results {
		worst.starved, worst.recovery = max(worst.starved, r.starved), max(worst.recovery, r.recovery)
	}
	record(t, result{"trust/starved_share", worst.starved, "%"}, result{"trust/recovery_s",
		worst.recovery.Seconds(), "s"})
}

// floodResult is the share of bystanders' new connections that failed, in percent of those on the worst way, and how
// long some failed after the end.
type floodResult struct {
	starved  float64
	recovery time.Duration
}

// The bounds of issue and budget.
const (
	mostStarved  = 1 // percent
	mostRecovery = 5 * time.Second
)

func (fl flood) run(t *testing.T, family int) (r floodResult) {
	f := upFlooded(t, family, fl)
	send := fl.begin(f, family)
	b := newBystanders(t, f.lanes)
	b.run()
	time.Sleep(patience(300 * time.Millisecond))
	begin, ended, named := time.Now(), make(chan struct{}), make(chan error, 1)
	if fl.table != "" {
		go func() { named <- f.namesFlooder(fl.table, "default/"+fl.from, ended) }()
	}
	var sent int
	err := f.end(fl.from).Do(func() (err error) {
		sent, err = paced(fl.packets, patience(fl.over), send)
		return err
	})
	end := time.Now()
	close(ended)
	check(t, err)
	if fl.table != "" {
		check(t, <-named)
	}
	starved, of, recovery := b.finish(begin, end)
	lost := b.establishedLost()
	r = floodResult{starved, recovery}
	t.Logf("%d packets in %.1f s; at most %.1f %% of %d new connections failed, of %d established ones %d are lost; "+
		"recovery %.1f s",
		sent, end.Sub(begin).Seconds(), r.starved, of, len(b.idle)+len(b.active), len(lost), recovery.Seconds())
	if of < 50 || sent < fl.packets/2 {
		t.Errorf("%d packets were sent and %d connections tried, which shows nothing", sent, of)
	}
	if r.starved > mostStarved {
		t.Errorf("%.1f %% of the new connections on one way failed during the flood, want at most %d %%", r.starved,
			mostStarved)
	}
	if recovery > patience(mostRecovery) {
		t.Errorf("new connections still failed %.1f s after the flood, want at most %s", recovery.Seconds(),
			mostRecovery)
	}
	for i, one := range lost {
		if i < 5 {
			t.Errorf("established connection lost: %s", one)
		}
	}
	return r
}

// namesFlooder reads status and metrics of node1 during the flood until both name the pod that uses most of the table.
// Afterwards they need not: unanswered entries make room within a second.
func (f *flooded) namesFlooder(table, pod string, ended <-chan struct{}) error {
	node := f.Node("node1")
	line := regexp.MustCompile(table + `:\s+\d+\s+of\s+\d+\s+entries(\s+\(grows\s+to\s+\d+\))?,\s+` + pod +
		`\s+has\s+the\s+most`)
	metric := fmt.Sprintf("myelin_conntrack_top_entries{pod=%q,table=%q}", pod, table)
	for last := false; ; {
		status, err := node.Exec(f.t.Context(), "myelin", "status", "--verbose")
		if err != nil {
			return err
		}
		_, metrics, err := f.nodeGet("node1", "/metrics")
		if err != nil {
			return err
		}
		if line.MatchString(status) && strings.Contains(metrics, metric) {
			return nil
		}
		if last {
			return fmt.Errorf("status and metrics of node1 did not name %s, which uses most:\n%s", pod, status)
		}
		select {
		case <-ended:
			last = true
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// flooded is a cluster whose bystanders have a server in the world and one on node2.
type flooded struct {
	*policed
	lanes []*lane
}

func upFlooded(t *testing.T, family int, fl flood) *flooded {
	values := perPacket()
	if fl.ports != "" {
		values["myelin.nat.portRange"] = fl.ports
	}
	f := &flooded{policed: upLabelled(t, setup{values: values})}
	f.enforce(t, openTo("open", "b1", "b2")) // so that their flows have rows
	f.apply("service", f.outsideYAML("flooded", floodService, "", "b2"))
	for _, prefix := range []netip.Prefix{nowhere(4), nowhere(6)} {
		f.command("ip", "-n", f.World().NetnsName(), "route", "add", "blackhole", prefix.String())
	}
	world, b1, b2 := f.end("world"), f.end("b1"), f.end("b2")
	server := at(world.addr(family), floodPort)
	backend := f.addLane("world→node port", family, world, at(nodeAddr(1, family), 30000+floodService), b2, 8080)
	f.addLane("b1→world", family, b1, server, world, floodPort)
	f.addLane("b1→b2", family, b1, at(b2.addr(family), 8081), b2, 8081)
	f.addUDP(family, b1, server)
	if strings.HasPrefix(fl.name, "fragments") {
		f.addFragments(family, b1)
	}
	eventually(t, "the node port answers", 10*time.Second, func() error {
		conn, err := backend.from.dialTCP(t.Context(), netip.AddrPort{}, backend.to)
		if err == nil {
			conn.Close()
			_, err = backend.tcp.AcceptTCP()
		}
		return err
	})
	return f
}

// addLane listens in a place for bystanders.
func (f *flooded) addLane(name string, family int, from end, to netip.AddrPort, server end, port uint16) *lane {
	f.t.Helper()
	listener, err := server.listenTCP(f.t.Context(), at(server.addr(family), port))
	check(f.t, err)
	f.t.Cleanup(func() { listener.Close() })
	l := &lane{name: name, family: family, from: from, to: to, tcp: listener}
	l.ask = l.askTCP
	f.lanes = append(f.lanes, l)
	return l
}

func (f *flooded) addUDP(family int, from end, to netip.AddrPort) {
	f.t.Helper()
	server, err := f.end("world").listenUDP(f.t.Context(), to, deep())
	check(f.t, err)
	f.t.Cleanup(func() { server.Close() })
	go answerAll(server)
	l := &lane{name: "UDP b1→world", family: family, from: from, to: to}
	l.ask = l.askUDP
	f.lanes = append(f.lanes, l)
}

// fragmentGap is what lies between the fragments of a bystander's datagram.
const fragmentGap = 800 * time.Millisecond

// addFragments has b1 send datagrams in two fragments, with a pause between them, which must arrive whole.
func (f *flooded) addFragments(family int, from end) {
	f.t.Helper()
	world := f.end("world")
	to := at(world.addr(family), floodPort+1)
	server, err := world.listenUDP(f.t.Context(), to, deep())
	check(f.t, err)
	f.t.Cleanup(func() { server.Close() })
	go answerAll(server)
	sender, err := from.raw(to.Addr())
	check(f.t, err)
	f.t.Cleanup(func() { sender.Close() })
	l := &lane{name: "fragments b1→world", family: family, from: from, to: to, takes: patience(fragmentGap)}
	l.ask = func(ctx context.Context, number uint64) error {
		c, err := from.dialUDP(ctx, at(from.addr(family), 0), to) // hears the answer
		if err != nil {
			return err
		}
		defer c.Close()
		data := binary.BigEndian.AppendUint64(nil, number)
		first, last := udpFragments(addrPort(c.LocalAddr()), to, uint32(number), append(data, make([]byte, 56)...))
		if err := sender.send(first); err != nil {
			return err
		}
		time.Sleep(patience(fragmentGap))
		if err := sender.send(last); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(patience(quick)))
		_, err = c.Read(make([]byte, 128))
		return err
	}
	f.lanes = append(f.lanes, l)
}

// sending is one packet of a flood, the i-th, sent by a thread in the flooder's namespace.
type sending func(i int) error

// raw has packets sent from a place until the test ends.
func (f *flooded) raw(from end, to netip.Addr, packet func(i int) []byte) sending {
	f.t.Helper()
	sender, err := from.raw(to)
	check(f.t, err)
	f.t.Cleanup(func() { sender.Close() })
	return func(i int) error { return sender.send(packet(i)) }
}

// spoofedSYNs come from addresses of the world that nothing has, and are answered.
func (f *flooded) spoofedSYNs(family int) sending {
	to := at(nodeAddr(1, family), 30000+floodService)
	return f.raw(f.end("world"), to.Addr(), func(i int) []byte {
		return synPacket(at(nowhereAddr(family, i), uint16(1024+i%60000)), to, uint32(i))
	})
}

// podSYNs come from a1 to the server of b1, each from a port of its own. a1 never resets what the server answers.
func (f *flooded) podSYNs(family int) sending {
	a1, to := f.end("a1"), at(f.end("world").addr(family), floodPort)
	f.command("ip", fmt.Sprintf("-%d", family), "-n", f.Pod("a1").NetnsName(), "rule", "add", "ipproto", "tcp",
		"dport", fmt.Sprint(floodPort), "blackhole")
	return f.raw(a1, to.Addr(), func(i int) []byte {
		return synPacket(at(a1.addr(family), uint16(1024+i%60000)), to, uint32(i))
	})
}

// podConnections need no privilege: a1 opens connections to the server of b1, and keeps them all.
func (f *flooded) podConnections(family int) sending {
	from, to := f.end("a1").addr(family), sockaddr(at(f.end("world").addr(family), floodPort))
	var sockets []int
	f.t.Cleanup(func() {
		for _, fd := range sockets {
			unix.Close(fd)
		}
	})
	return func(i int) error {
		fd, err := unix.Socket(domain(family), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		sockets = append(sockets, fd)
		if err := unix.Bind(fd, sockaddr(at(from, uint16(1024+i%60000)))); err != nil {
			return err
		}
		if err := unix.Connect(fd, to); !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
		return nil
	}
}

// podUDP needs no privilege: a1 sends a datagram from each of its ports to the server of b1, which answers.
func (f *flooded) podUDP(family int) sending {
	from, to := f.end("a1").addr(family), sockaddr(at(f.end("world").addr(family), floodPort))
	return func(i int) error {
		fd, err := unix.Socket(domain(family), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, sockaddr(at(from, uint16(1024+i%60000)))); err != nil {
			return err
		}
		return unix.Sendto(fd, []byte("flood"), 0, to)
	}
}

// podFlows need no privilege: a1 sends a datagram to each of many addresses.
func (f *flooded) podFlows(family int) sending {
	var fd int
	check(f.t, f.end("a1").Do(func() (err error) {
		fd, err = unix.Socket(domain(family), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	f.t.Cleanup(func() { unix.Close(fd) })
	return func(i int) error {
		return unix.Sendto(fd, []byte("flood"), 0, sockaddr(at(nowhereAddr(family, i), uint16(1+i>>17))))
	}
}

// podFragments are first fragments without a second one.
func (f *flooded) podFragments(family int) sending {
	a1, to := f.end("a1"), at(nowhereAddr(family, 1), 1)
	return f.raw(a1, to.Addr(), func(i int) []byte {
		first, _ := udpFragments(at(a1.addr(family), 1024), to, uint32(i), make([]byte, 64))
		return first
	})
}

func domain(family int) int {
	if family == 4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
