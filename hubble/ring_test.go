package hubble

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"myelin/event"
)

func newRing(t testing.TB, capacity int) *Ring {
	t.Helper()
	r, err := NewRing(capacity)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCapacity(t *testing.T) {
	for _, n := range []int{1, 3, 255, 4095, 65535, maxCapacity} {
		if err := checkCapacity(n); err != nil {
			t.Error(err)
		}
	}
	for _, n := range []int{-1, 0, 2, 4096, 2*maxCapacity + 1} {
		if checkCapacity(n) == nil {
			t.Errorf("%d is accepted", n)
		}
	}
}

func TestRingKeepsTheLast(t *testing.T) {
	r := newRing(t, 7)
	var raw event.Raw
	if r.Read(0, &raw) || r.Len() != 0 {
		t.Error("an empty ring has an event")
	}
	for i := range 20 {
		r.Write(&event.Raw{TimeNs: uint64(i), Rule: [2]uint32{uint32(i), 7}, Denied: 9})
	}
	if r.Oldest() != 13 || r.Next() != 20 || r.Len() != 7 {
		t.Fatalf("from %d to %d, length %d", r.Oldest(), r.Next(), r.Len())
	}
	for pos := range r.Next() {
		ok := r.Read(pos, &raw)
		if ok != (pos >= 12) { // the slot that the next event takes is still whole
			t.Errorf("read %d: %v", pos, ok)
		}
		if ok && (raw.TimeNs != pos || raw.Rule != [2]uint32{uint32(pos), 7} || raw.Denied != 9) {
			t.Errorf("event %d is %+v", pos, raw)
		}
	}
}

func TestRingAllocatesLazily(t *testing.T) {
	r := newRing(t, 4095)
	r.Write(&event.Raw{})
	used := 0
	chunks := r.storage.Load().chunks
	for i := range chunks {
		if chunks[i].Load() != nil {
			used++
		}
	}
	if used != 1 || len(chunks) != 16 {
		t.Errorf("%d of %d chunks are allocated", used, len(chunks))
	}
	raw := event.Raw{TimeNs: 1}
	for range 4096 {
		r.Write(&raw)
	}
	if n := testing.AllocsPerRun(100, func() { r.Write(&raw) }); n != 0 {
		t.Errorf("%v allocations per Write", n)
	}
}

func TestRingWait(t *testing.T) {
	r := newRing(t, 7)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Wait(ctx, 1) }()
	r.Write(&event.Raw{})
	select {
	case <-done:
		t.Fatal("woken for an event before the one that was waited for")
	case <-time.After(20 * time.Millisecond):
	}
	r.Write(&event.Raw{})
	if err := <-done; err != nil {
		t.Error(err)
	}
	go func() { done <- r.Wait(ctx, 2) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestRingUnderWriters has readers that are overtaken all the time: whatever they read is whole.
func TestRingUnderWriters(t *testing.T) {
	r := newRing(t, 7)
	const each, writers = 20000, 2
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range uint64(each) {
				n := i<<8 | uint64(w)
				r.Write(&event.Raw{TimeNs: n, Cookie: n, Cgroup: n, Rule: [2]uint32{uint32(n), uint32(n)}})
			}
		})
	}
	for range 2 {
		group.Go(func() {
			var raw event.Raw
			read := 0
			for pos := uint64(0); pos < each*writers; pos++ {
				if err := r.Wait(t.Context(), pos); err != nil {
					t.Error(err)
				}
				if !r.Read(pos, &raw) {
					pos = max(pos, r.Oldest())
					continue
				}
				read++
				if raw.Cookie != raw.TimeNs || raw.Cgroup != raw.TimeNs || raw.Rule[1] != uint32(raw.TimeNs) {
					t.Errorf("torn: %+v", raw)
				}
			}
			if read == 0 {
				t.Error("nothing was read")
			}
		})
	}
	group.Wait()
	if r.Next() != each*writers {
		t.Errorf("%d events", r.Next())
	}
}

func BenchmarkRingWrite(b *testing.B) {
	r := newRing(b, 4095)
	raw := event.Raw{TimeNs: 1, Ifindex: 3, Length: 74, Sport: 80, Dport: 4711, Type: 3}
	raw.Src.B[15], raw.Dst.B[15] = 1, 2
	for b.Loop() {
		raw.TimeNs++
		r.Write(&raw)
	}
}
