package service_test

import (
	"fmt"
	"net/netip"
	"testing"

	"myelin/cluster"
	"myelin/service"
	"myelin/service/servicetest"
)

// If one of 5,000 backends changes, its row and the frontend of its Service are written, and nothing else; the set of
// the frontend changes in at most two places.
func TestOneOfManyChanges(t *testing.T) {
	w := servicetest.New(t, service.Config{}, "")
	o := servicetest.Many(1, 5000)
	more := servicetest.Many(21, 3)
	o.Services, o.Slices = append(o.Services, more.Services[1:]...), append(o.Slices, more.Slices[1:]...)
	w.Set(t, o)
	vip := service.L4(o.Services[0].ClusterIPs[0], 80, service.TCP)
	move := func(e *cluster.Endpoint) { e.Address = netip.MustParseAddr("10.9.0.1") }
	for _, step := range []struct {
		name   string
		part   *cluster.EndpointSlice
		wrote  string
		places int
	}{
		{"same", servicetest.With(o.Slices[2], 500, func(*cluster.Endpoint) {}),
			"wrote 0 services 0 frontends 0 backends", 0},
		{"zone", servicetest.With(o.Slices[2], 500, func(e *cluster.Endpoint) { e.Zone = "z" }),
			"wrote 0 services 0 frontends 1 backends", 0},
		{"drains", servicetest.With(o.Slices[2], 500, servicetest.Drain), "wrote 0 services 1 frontends 1 backends", 1},
		{"is back", o.Slices[2], "wrote 0 services 1 frontends 1 backends", 0},
		{"moves", servicetest.With(o.Slices[4], 10, move), "wrote 0 services 1 frontends 1 backends", 1},
	} {
		before := w.DB.ReadTxn()
		w.PutSlice(t, step.part)
		if got := written(w, before); got != step.wrote {
			t.Errorf("%s: %s, want %s", step.name, got, step.wrote)
		}
		was, _, _ := w.Desired.Frontends.Get(before, service.FrontendByAddress(vip))
		is, _, _ := w.Desired.Frontends.Get(w.DB.ReadTxn(), service.FrontendByAddress(vip))
		places := 0
		for i := range min(len(was.Internal), len(is.Internal)) {
			if was.Internal[i] != is.Internal[i] {
				places++
			}
		}
		if places != step.places {
			t.Errorf("%s: %d places of the set changed, want %d", step.name, places, step.places)
		}
	}
}

// BenchmarkFull computes everything from nothing.
func BenchmarkFull(b *testing.B) {
	for _, size := range [][2]int{{10000, 2}, {10000, 10}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			o := servicetest.Many(size[0], size[1])
			for b.Loop() {
				w := servicetest.New(b, service.Config{}, b.TempDir())
				txn := w.DB.WriteTxn(w.Tables.Services, w.Tables.Slices)
				for _, s := range o.Services {
					w.Tables.Services.Insert(txn, s)
				}
				for _, s := range o.Slices {
					w.Tables.Slices.Insert(txn, s)
				}
				txn.Commit()
				w.Step()
				if n := w.Desired.Backends.NumObjects(w.DB.ReadTxn()); n != size[0]*size[1] {
					b.Fatalf("got %d backends", n)
				}
			}
		})
	}
}

// BenchmarkOne changes one backend of a Service, beside many others.
func BenchmarkOne(b *testing.B) {
	for _, size := range [][2]int{{1000, 10}, {10000, 10}, {1, 5000}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			o := servicetest.Many(size[0], size[1])
			w := servicetest.New(b, service.Config{}, b.TempDir())
			w.Set(b, o)
			parts := []*cluster.EndpointSlice{servicetest.With(o.Slices[0], 5, servicetest.Drain), o.Slices[0]}
			i := 0
			for b.Loop() {
				w.PutSlice(b, parts[i%2])
				i++
			}
		})
	}
}
