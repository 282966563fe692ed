package hubble

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"myelin/event"
	"myelin/l7/control"
	"myelin/l7/dns"
)

// TestResizeKeepsTheLast grows and shrinks a ring, with the oldest events in the middle of a chunk: each event that
// fits can be read, and no other.
func TestResizeKeepsTheLast(t *testing.T) {
	r := newRing(t, 1023)
	next := uint64(0)
	write := func(n int) {
		for range n {
			r.Write(&event.Raw{TimeNs: next, Cookie: ^next})
			next++
		}
	}
	expect := func(name string, oldest uint64) {
		t.Helper()
		if r.Oldest() != oldest || r.Next() != next || r.Len() != next-oldest {
			t.Fatalf("%s: from %d to %d, length %d; want %d to %d", name, r.Oldest(), r.Next(), r.Len(), oldest, next)
		}
		var raw event.Raw
		for pos := range next {
			if ok := r.Read(pos, &raw); pos >= oldest && (!ok || raw.TimeNs != pos || raw.Cookie != ^pos) {
				t.Fatalf("%s: event %d is %+v, %v", name, pos, raw, ok)
			}
		}
		if oldest > 0 && r.Read(oldest-2, &raw) {
			t.Errorf("%s: an event before the oldest is there", name)
		}
	}
	write(1500)
	expect("full", 477)
	r.resize(4095)
	expect("grown", 477)
	write(2000)
	expect("filling", 477)
	write(2000)
	expect("filled", 5500-4095)
	r.resize(1023)
	expect("shrunk", 5500-1023)
	write(700)
	expect("full again", 6200-1023)
}

// TestResizeUnderReaders has a reader follow a ring that is resized while it is written: the reader gets each event, or
// is told of it.
func TestResizeUnderReaders(t *testing.T) {
	const events = 200000
	r := newRing(t, 1023)
	reader := &reader{ring: r, source: written{}, tracker: newTracker(time.Minute)}
	var group sync.WaitGroup
	group.Go(func() {
		for i := range uint64(events) {
			r.Write(&event.Raw{TimeNs: i, Cookie: i})
			if i%512 == 0 {
				runtime.Gosched()
			}
		}
	})
	group.Go(func() {
		for i := 0; r.Next() < events; i++ {
			r.resize([]int{4095, 1023, 65535}[i%3])
		}
	})
	read := uint64(0)
	for reader.pos < events {
		if err := r.Wait(t.Context(), reader.pos); err != nil {
			t.Fatal(err)
		}
		for reader.step(time.Now) {
			read++
			if reader.raw.Cookie != reader.pos-1 || reader.raw.TimeNs != reader.pos-1 {
				t.Fatalf("event %d is %+v", reader.pos-1, reader.raw)
			}
		}
	}
	group.Wait()
	if read == 0 || read+reader.missed != events {
		t.Errorf("%d events read, %d missed, want %d together", read, reader.missed, events)
	}
}

// TestResizeKeepsRecords has records of the proxy outlive a change of the capacity.
func TestResizeKeepsRecords(t *testing.T) {
	r := newRing(t, 15)
	put := func() uint64 { return r.l7.put(control.Record{DNS: &dns.Record{Query: "q"}}, r.Capacity()) }
	for range 20 {
		put()
	}
	r.resize(63)
	for n := range uint64(20) {
		if record, ok := r.L7(n); ok != (n >= 4) || ok && record.DNS == nil {
			t.Errorf("record %d: %v, %+v", n, ok, record)
		}
	}
	r.resize(15)
	n := put()
	if _, ok := r.L7(n); !ok || n != 20 {
		t.Errorf("record %d: %v", n, ok)
	}
	if _, ok := r.L7(4); ok {
		t.Error("a record that does not fit is there")
	}
}

// TestSizing has an observer at rates of flows: the ring keeps those of a minute, within its bounds, and gives back the
// memory of a rate that is over.
func TestSizing(t *testing.T) {
	now, r := boot(), newRing(t, 4095)
	o := &Observer{Ring: r, Source: written{}, Now: func() time.Time { return now },
		Sizing: &Sizing{Least: 4095, Most: 65535, Keep: time.Minute}}
	o.Begin()
	at := func(perSecond, seconds int) {
		for range seconds {
			for range perSecond {
				r.Write(&event.Raw{TimeNs: 1, Cookie: 2})
			}
			now = now.Add(time.Second)
			o.Sample()
		}
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc >> 10
	}
	for _, step := range []struct {
		rate, capacity, kept int
	}{
		{0, 4095, 0}, {68, 4095, 4080}, {500, 32767, 30000}, {1092, 65535, 65520}, {5000, 65535, 65535},
		{10, 4095, 600},
	} {
		at(step.rate, 61)
		if got := r.Capacity(); got != uint64(step.capacity) || r.Len() < uint64(step.kept) {
			t.Errorf("%d flows a second: capacity %d with %d, want %d with %d", step.rate, got, r.Len(), step.capacity,
				step.kept)
		}
		if step.rate == 5000 {
			const perEvent = 200 // bytes; 176 and the chunks' share
			full := heap()
			at(10, 61)
			if small := heap(); full-small < 60000*perEvent*8/10>>10 || full < small {
				t.Errorf("%d KiB with 65,535 events, %d after the load", full, small)
			}
		}
	}
	o.Sizing = nil
	at(5000, 2)
	if r.Capacity() != 4095 {
		t.Errorf("a fixed capacity is %d", r.Capacity())
	}
	runtime.KeepAlive(r)
}

// BenchmarkRingResize copies 32,767 events each time.
func BenchmarkRingResize(b *testing.B) {
	r := newRing(b, 65535)
	for i := range uint64(1 << 16) {
		r.Write(&event.Raw{TimeNs: i, Ifindex: 3, Length: 74, Sport: 80, Dport: 4711, Type: 3})
	}
	for i := 0; b.Loop(); i++ {
		r.resize([]int{32767, 65535}[i%2])
	}
}
