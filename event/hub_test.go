package event_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/drop"
	"myelin/event"
	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

func packetNames() packet.Names {
	return packet.Names{
		"pod": {MAC: []byte{2, 0, 0, 0, 0, 1}, IP4: netip.MustParseAddr("10.0.1.2"),
			IP6: netip.MustParseAddr("fd00:1::2")},
		"peer": {MAC: []byte{2, 0, 0, 0, 0, 2}, IP4: netip.MustParseAddr("10.0.2.2"),
			IP6: netip.MustParseAddr("fd00:2::2")},
	}
}

func newHub(d *bpf.Datapath) *event.Hub {
	return event.NewHub(slog.New(slog.NewTextHandler(io.Discard, nil)), d, drop.Counters{Cpus: d.Cpus}.LostEvents)
}

func subscribe(t *testing.T, h *event.Hub) *event.Subscription {
	t.Helper()
	s, err := h.Subscribe(func(*event.Raw) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// next waits for an event; nil if none comes soon.
func next(s *event.Subscription, patience time.Duration) *event.Raw {
	select {
	case r := <-s.Events():
		return &r
	case <-time.After(patience):
		return nil
	}
}

const (
	soon  = 5 * time.Second
	never = 50 * time.Millisecond
)

// text is a packet that from_pod drops, since it is from no pod's link.
const text = `eth pod > peer | ip pod > peer | udp 1 > 2 | len 58`

func TestEventsReachWhoListens(t *testing.T) {
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1, Ipv6: 1, EventRate: 1000}, nil)
	h := newHub(d)
	decoder := event.NewDecoder(fixed{}, time.Unix(0, 0))
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		bpftest.Send(t, d, bpf.FromPod, f, packetNames(), text) // no listener
		if h.Listening() {
			t.Error("listening before there is a subscriber")
		}
		first, second := subscribe(t, h), subscribe(t, h)
		bpftest.Send(t, d, bpf.FromPod, f, packetNames(), text)
		for _, s := range []*event.Subscription{first, second} {
			r := next(s, soon)
			if r == nil {
				t.Fatal("no event")
			}
			if now, err := event.Monotonic(); err != nil || now-time.Duration(r.TimeNs) > soon ||
				now < time.Duration(r.TimeNs) {
				t.Errorf("event at %s, now %s, %v", time.Duration(r.TimeNs), now, err)
			}
			e := decoder.Decode(r)
			src, dst := packetNames()["pod"], packetNames()["peer"]
			want := event.Party{Addr: src.IP4, Pod: "of " + src.IP4.String(), Identity: 7}
			to, ethertype := dst.IP4, uint16(0x0800)
			if f == packet.IPv6 {
				want, to, ethertype = event.Party{Addr: src.IP6, Pod: "of " + src.IP6.String(),
					Identity: 7}, dst.IP6, 0x86dd
			}
			if e.Type != event.Drop || e.Outcome != "DROP_NO_ENDPOINT" || e.Hook != bpf.FromPod ||
				e.Interface != "link1" || e.Src != want ||
				e.Dst.Addr != to || e.EtherType != ethertype || e.SrcMAC != src.MAC.String() || e.Length == 0 {
				t.Errorf("event %+v", e)
			}
			if extra := next(s, never); extra != nil {
				t.Errorf("another event: %+v", decoder.Decode(extra))
			}
		}
		first.Close()
		bpftest.Send(t, d, bpf.FromPod, f, packetNames(), text)
		if next(second, soon) == nil {
			t.Error("no event after another subscriber has gone")
		}
		second.Close()
		second.Close()
		if h.Listening() {
			t.Error("listening after the last subscriber has gone")
		}
	})
	if slow, kernel := h.Lost(); slow != 0 || kernel != 0 {
		t.Errorf("lost %d and %d", slow, kernel)
	}
}

// TestFlowsAreToldToListeners: without listeners there are no events of flows.
func TestFlowsAreToldToListeners(t *testing.T) {
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1, Ipv6: 1, FlowAlways: 1, Monitor: 1, TraceRate: 1000,
		TraceSlots: 64}, nil)
	h := newHub(d)
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		bpftest.Send(t, d, bpf.ToPod, f, packetNames(), `eth peer > pod | ip peer > pod | udp 1 > 2`)
		s := subscribe(t, h)
		defer s.Close()
		bpftest.Send(t, d, bpf.ToPod, f, packetNames(), `eth peer > pod | ip peer > pod | udp 3 > 4`)
		r := next(s, soon)
		if r == nil || event.TypeOf(r) != event.FlowBegin || bpf.Port(r.Sport) != 3 {
			t.Errorf("got %+v", r)
		}
	})
}

func TestLostInTheKernel(t *testing.T) {
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1}, nil) // EventRate 0: all are lost
	h := newHub(d)
	send := func(n int) {
		for range n {
			bpftest.Send(t, d, bpf.FromPod, packet.IPv4, packetNames(), text)
		}
	}
	want := func(n uint64) {
		t.Helper()
		if slow, kernel := h.Lost(); slow != 0 || kernel != n {
			t.Errorf("lost %d and %d, want 0 and %d", slow, kernel, n)
		}
	}
	send(3)
	want(0)
	s := subscribe(t, h)
	send(4)
	want(4)
	s.Close()
	send(2)
	want(4)
	s = subscribe(t, h)
	send(1)
	want(5)
	s.Close()
	want(5)
}

func TestSlowSubscriberLoses(t *testing.T) {
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1}, nil)
	h := newHub(d)
	slow := subscribe(t, h)
	picky, err := h.Subscribe(func(r *event.Raw) bool { return r.Sport == 1 })
	if err != nil {
		t.Fatal(err)
	}
	defer picky.Close()
	room := cap(slow.Events())
	for i := range room + 5 {
		h.Publish(&event.Raw{Sport: uint16(i)})
	}
	if len(slow.Events()) != room || slow.Lost() != 5 || slow.Lost() != 0 {
		t.Errorf("%d of %d events are kept", len(slow.Events()), room)
	}
	if r := next(picky, soon); r == nil || r.Sport != 1 || len(picky.Events()) != 0 || picky.Lost() != 0 {
		t.Errorf("picky got %+v and %d more", r, len(picky.Events()))
	}
	if lost, _ := h.Lost(); lost != 5 {
		t.Errorf("hub lost %d, want 5", lost)
	}
}

// TestSink: a sink gets every event, wanted or not, until it is closed.
func TestSink(t *testing.T) {
	h := newHub(bpftest.Load(t, bpf.Settings{Ipv4: 1}, nil))
	var got []uint16
	s, err := h.Sink(event.Sink{Record: func(r *event.Raw) { got = append(got, r.Sport) }})
	if err != nil {
		t.Fatal(err)
	}
	h.Publish(&event.Raw{Sport: 7})
	h.Publish(&event.Raw{Sport: 8, Type: 9})
	if s.Close(); h.Listening() {
		t.Error("the hub listens on")
	}
	h.Publish(&event.Raw{Sport: 9})
	if !slices.Equal(got, []uint16{7, 8}) {
		t.Error(got)
	}
}

// TestPull: a sink gets what happened since its last pull, also before it was there, and how much was overwritten.
func TestPull(t *testing.T) {
	const slots = 64
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1, Ipv6: 1, FlowAlways: 1, Monitor: 1, EventRate: 1000, TraceRate: 1000,
		TraceSlots: slots}, nil)
	if err := d.Listen(bpf.DatapathListenLISTEN_FLOWS); err != nil {
		t.Fatal(err)
	}
	flow := func(port int) {
		bpftest.Send(t, d, bpf.ToPod, packet.IPv4, packetNames(),
			fmt.Sprintf(`eth peer > pod | ip peer > pod | udp %d > 4`, port))
	}
	flow(1)
	flow(2)
	h := newHub(d)
	var got []uint16
	missed := uint64(0)
	s, err := h.Sink(event.Sink{
		Record:      func(r *event.Raw) { got = append(got, bpf.Port(r.Sport)) },
		Overwritten: func(n uint64, _ time.Duration) { missed += n },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := d.Listen(bpf.DatapathListenLISTEN_FLOWS); err != nil {
		t.Fatal(err)
	}
	pulled := func(want ...uint16) {
		t.Helper()
		if h.Pull(); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		got = nil
	}
	pulled(1, 2)
	pulled()
	flow(3)
	bpftest.Send(t, d, bpf.FromPod, packet.IPv4, packetNames(), text) // a drop, whose ports are not parsed
	flow(5)
	pulled(3, 0, 5)
	flow(6)
	now, err := event.Monotonic()
	if err != nil {
		t.Fatal(err)
	}
	h.Insert([]event.Raw{{Type: event.Report, TimeNs: uint64(now), Sport: bpf.Port(7)}})
	flow(8)
	pulled(6, 7, 8)
	for i := range 3 * slots {
		flow(1000 + i)
	}
	if h.Pull(); missed == 0 || uint64(len(got))+missed != 3*slots || got[len(got)-1] != 1000+3*slots-1 {
		t.Errorf("%d events and %d overwritten of %d: %v", len(got), missed, 3*slots, got)
	}
}

// TestReports: subscribers get events of the datapath alone, and no reports.
func TestReports(t *testing.T) {
	h := newHub(bpftest.Load(t, bpf.Settings{Ipv4: 1, Monitor: 1, TraceSlots: 64}, nil))
	h.Insert([]event.Raw{{Type: event.Report, Sport: 1}}) // without a reader
	s := subscribe(t, h)
	h.Publish(&event.Raw{Type: event.Report, Sport: 2})
	h.Publish(&event.Raw{Sport: 3})
	if r := next(s, soon); r == nil || r.Sport != 3 {
		t.Errorf("%+v", r)
	}
}

// TestPullEnds: Pull does not wait for a reader that has ended.
func TestPullEnds(t *testing.T) {
	h := newHub(bpftest.Load(t, bpf.Settings{Ipv4: 1, Monitor: 1, TraceSlots: 64}, nil))
	h.Pull()
	for range 20 {
		s, err := h.Sink(event.Sink{Record: func(*event.Raw) {}})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 10 {
				h.Pull()
			}
		}()
		s.Close()
		<-done
	}
}

func TestPublishAllocatesNothing(t *testing.T) {
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1}, nil)
	h := newHub(d)
	s := subscribe(t, h)
	raw := event.Raw{Sport: 1}
	if n := testing.AllocsPerRun(100, func() {
		h.Publish(&raw)
		<-s.Events()
	}); n != 0 {
		t.Errorf("%v allocations an event", n)
	}
}

// fixed names everything.
type fixed struct{}

func (fixed) Owner(a netip.Addr) (string, uint32) { return "of " + a.String(), 7 }
func (fixed) Link(index int) string               { return "link" + string(rune('0'+index)) }
