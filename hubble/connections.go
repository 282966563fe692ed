package hubble

import (
	"cmp"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"myelin/bpf"
	"myelin/event"
	"myelin/service/sockdiag"
)

const (
	// connectionsShare is how many times what a pass over all pods took passes, at least, until the next one.
	connectionsShare = 200
	// reportsShare is the part of the ring that the reports of one pass may take.
	reportsShare = 8
)

// ConnectionPod is a pod of this node whose TCP connections are reported.
type ConnectionPod struct {
	Slot       uint16
	Namespace  string // path of its network namespace
	IPv4, IPv6 netip.Addr
}

// Connections reports what TCP connections of pods carry while they last: the datapath reports their begin and end
// only, since to count their packets would cost each of them. The kernel of each pod counts anyway. All fields are set
// before it is used.
type Connections struct {
	Log      *slog.Logger
	Capacity func() uint64 // of the ring
	Interval time.Duration
	Pods     func() []ConnectionPod
	// Insert takes reports, to record them in the order of time with what the datapath reports.
	Insert func([]event.Raw)
	// List returns the connections of a network namespace; it is an argument for tests.
	List func(path string) ([]sockdiag.Connection, error)
	Now  func() (time.Duration, error) // CLOCK_MONOTONIC

	mu     sync.Mutex
	known  map[uint16]podConnections // by slot; nil: there was no pass yet
	next   time.Duration             // no pass before
	failed string                    // what was logged last
}

// podConnections are the connections of a pod as last reported, by cookie. nil: they could not be listed yet.
type podConnections map[uint64]sockdiag.Connection

// Report writes the reports that are due, and returns after what time the next ones may be. It does nothing while
// another call is at work, or if the last pass was not long enough ago.
func (c *Connections) Report() (wait time.Duration) {
	if !c.mu.TryLock() {
		return c.Interval
	}
	defer c.mu.Unlock()
	now, err := c.Now()
	if err != nil || now < c.next {
		return max(c.next-now, time.Second/10)
	}
	due := c.pass()
	end, err := c.Now() // before that, other events may have been recorded already
	if err != nil {
		return c.Interval
	}
	c.next = max(now+c.Interval, end+connectionsShare*(end-now))
	var list []event.Raw
	slices.SortStableFunc(due, func(a, b carried) int { return cmp.Compare(b.bytes(), a.bytes()) })
	for _, r := range due[:min(len(due), max(1, int(c.Capacity())/reportsShare/2))] {
		c.known[r.pod.Slot][r.now.Cookie] = r.now // others go on counting until a later report
		list = r.reports(list, end)
	}
	c.Insert(list)
	return c.next - now
}

// carried is what a connection has carried since the last report, or since it began.
type carried struct {
	pod      *ConnectionPod
	now, old sockdiag.Connection
}

func (r *carried) bytes() uint64 {
	return r.now.SentBytes + r.now.ReceivedBytes - r.old.SentBytes - r.old.ReceivedBytes
}

// pass lists the connections of all pods, and returns those that have carried something.
func (c *Connections) pass() (due []carried) {
	before := c.known
	c.known = map[uint16]podConnections{}
	for _, pod := range c.Pods() {
		known, listed := before[pod.Slot]
		list, err := c.List(pod.Namespace)
		if err != nil {
			c.complain(err)
			c.known[pod.Slot] = known
			continue
		}
		c.known[pod.Slot] = podConnections{}
		for _, now := range list {
			local := now.Local.Addr()
			if local != pod.IPv4 && local != pod.IPv6 || local == now.Remote.Addr() {
				continue // the pod's own business, or another network's
			}
			old := known[now.Cookie] // zero: it has begun since
			if before == nil || listed && known == nil {
				old = now // it began unseen, or the agent before has reported it
			}
			c.known[pod.Slot][now.Cookie] = old
			if now.Sent != old.Sent || now.Received != old.Received {
				due = append(due, carried{&pod, now, old})
			}
		}
	}
	return due
}

// complain logs an error, once until there is another one.
func (c *Connections) complain(err error) {
	if text := err.Error(); text != c.failed {
		c.failed = text
		c.Log.Warn("TCP connections of a pod are not reported", "error", err)
	}
}

// reports appends the reports of both directions.
func (r *carried) reports(list []event.Raw, at time.Duration) []event.Raw {
	local, remote := r.now.Local, r.now.Remote
	raw := event.Raw{
		Type: event.Report, TimeNs: uint64(at), Proto: protoTCP, TcpFlags: tcpACK, Slot: r.pod.Slot, Family: 6,
		Cookie: r.now.Cookie, Outcome: uint8(bpf.DatapathOutcomeFORWARD_POD),
	}
	if local.Addr().Is4() {
		raw.Family = 4
	}
	ways := [2]uint16{uint16(bpf.DatapathEventFlagEVENT_REQUEST), uint16(bpf.DatapathEventFlagEVENT_REPLY)}
	if r.now.Accepted {
		ways[0], ways[1] = ways[1], ways[0]
	}
	for i, d := range []struct {
		from, to       netip.AddrPort
		hook           bpf.DatapathHook
		packets, bytes uint64
	}{
		{local, remote, bpf.DatapathHookHOOK_FROM_POD, r.now.Sent - r.old.Sent, r.now.SentBytes - r.old.SentBytes},
		{remote, local, bpf.DatapathHookHOOK_TO_POD, r.now.Received - r.old.Received,
			r.now.ReceivedBytes - r.old.ReceivedBytes},
	} {
		out := raw
		out.Src, out.Sport = bpf.Addr(d.from.Addr()), bpf.Port(d.from.Port())
		out.Dst, out.Dport = bpf.Addr(d.to.Addr()), bpf.Port(d.to.Port())
		out.Hook, out.Flags = uint8(d.hook), ways[i]
		out.Packets, out.Bytes = uint64(uint32(d.packets)), d.bytes // modulo 2^32
		if out.Packets > 0 {
			list = append(list, out)
		}
	}
	return list
}

// reportWay is the direction of a report's packets.
func reportWay(r *event.Raw) way {
	if r.Flags&uint16(bpf.DatapathEventFlagEVENT_REPLY) != 0 {
		return reply
	}
	return request
}
