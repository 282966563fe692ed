package service

import (
	"fmt"
	"net/netip"
	"testing"

	"myelin/cluster"
)

// many makes Services with backends each, in slices of at most 1000 endpoints;
// odd ones are IPv6.
func many(services, backends int) (o objects) {
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00:1::1")
	vip4, vip6 := netip.MustParseAddr("172.20.0.1"), netip.MustParseAddr("fd00:96::1")
	for i := range services {
		pod, vip, family := &four, &vip4, "IPv4"
		if i%2 == 1 {
			pod, vip, family = &six, &vip6, "IPv6"
		}
		name := fmt.Sprintf("s%d", i)
		o.Services = append(o.Services, &cluster.Service{
			Namespace: "x", Name: name, Type: "ClusterIP", ClusterIPs: []netip.Addr{*vip}, Families: []string{family},
			Ports: []cluster.ServicePort{{Port: 80, Protocol: "TCP"}},
		})
		*vip = vip.Next()
		for first := 0; first < backends; first += 1000 {
			part := &cluster.EndpointSlice{
				Namespace: "x", Name: fmt.Sprintf("%s-%d", name, first), Service: name, AddressType: family,
				Ports: []cluster.SlicePort{{Port: 8080, Protocol: "TCP"}},
			}
			for j := first; j < min(backends, first+1000); j++ {
				part.Endpoints = append(part.Endpoints, cluster.Endpoint{Address: *pod, Ready: true, Serving: true, Node: fmt.Sprintf("n%d", j%100)})
				*pod = pod.Next()
			}
			o.Slices = append(o.Slices, part)
		}
	}
	return o
}

// with is a slice whose endpoint i is changed.
func with(part *cluster.EndpointSlice, i int, change func(*cluster.Endpoint)) *cluster.EndpointSlice {
	c := *part
	c.Endpoints = append([]cluster.Endpoint(nil), part.Endpoints...)
	change(&c.Endpoints[i])
	return &c
}

func drain(e *cluster.Endpoint) { e.Ready, e.Terminating = false, true }

// put writes one slice, as a watch does.
func (w *world) put(t testing.TB, part *cluster.EndpointSlice) {
	t.Helper()
	txn := w.DB.WriteTxn(w.Tables.Slices)
	if _, _, err := w.Tables.Slices.Insert(txn, part); err != nil {
		t.Fatal(err)
	}
	txn.Commit()
	w.round(w.follow)
}

// One backend of 5,000 that changes changes its row, its Service's frontend and
// nothing else, and in the frontend one or two places.
func TestOneOfManyChanges(t *testing.T) {
	w := newWorld(t, Config{}, "")
	o := many(1, 5000)
	more := many(21, 3)
	o.Services, o.Slices = append(o.Services, more.Services[1:]...), append(o.Slices, more.Slices[1:]...)
	w.set(t, o)
	vip := L4(o.Services[0].ClusterIPs[0], 80, TCP)
	for _, step := range []struct {
		name   string
		part   *cluster.EndpointSlice
		wrote  string
		places int
	}{
		{"same", with(o.Slices[2], 500, func(*cluster.Endpoint) {}), "wrote 0 services 0 frontends 0 backends", 0},
		{"zone", with(o.Slices[2], 500, func(e *cluster.Endpoint) { e.Zone = "z" }), "wrote 0 services 0 frontends 1 backends", 0},
		{"drains", with(o.Slices[2], 500, drain), "wrote 0 services 1 frontends 1 backends", 1},
		{"is back", o.Slices[2], "wrote 0 services 1 frontends 1 backends", 0},
		{"moves", with(o.Slices[4], 10, func(e *cluster.Endpoint) { e.Address = netip.MustParseAddr("10.9.0.1") }), "wrote 0 services 1 frontends 1 backends", 1},
	} {
		before := w.DB.ReadTxn()
		w.put(t, step.part)
		if got := w.written(before); got != step.wrote {
			t.Errorf("%s: %s, want %s", step.name, got, step.wrote)
		}
		was, _, _ := w.Desired.Frontends.Get(before, FrontendByAddress(vip))
		is, _, _ := w.Desired.Frontends.Get(w.DB.ReadTxn(), FrontendByAddress(vip))
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

func TestArrange(t *testing.T) {
	refs := func(ids ...uint32) (out []BackendRef) {
		for _, id := range ids {
			out = append(out, BackendRef{ID: id, Weight: 1})
		}
		return out
	}
	for name, tc := range map[string]struct{ last, want, got []BackendRef }{
		"first":          {nil, refs(1, 2), refs(1, 2)},
		"same":           {refs(2, 1), refs(1, 2), refs(2, 1)},
		"one more":       {refs(2, 1), refs(0, 1, 2), refs(2, 1, 0)},
		"one less":       {refs(4, 3, 2, 1), refs(1, 2, 4), refs(4, 1, 2)},
		"last goes":      {refs(4, 3, 2, 1), refs(2, 3, 4), refs(4, 3, 2)},
		"many go":        {refs(1, 2, 3, 4, 5, 6), refs(2, 5), refs(5, 2)},
		"tail goes":      {refs(1, 2, 3, 4), refs(1), refs(1)},
		"another":        {refs(1, 2, 3), refs(1, 3, 9), refs(1, 9, 3)},
		"others, fewer":  {refs(1, 2, 3), refs(8), refs(8)},
		"none":           {refs(1, 2), nil, refs()},
		"another weight": {refs(2, 1), []BackendRef{{1, 1}, {2, 5}}, []BackendRef{{2, 5}, {1, 1}}},
	} {
		if got := arrange(tc.last, tc.want); !sameRefs(got, tc.got) {
			t.Errorf("%s: got %v, want %v", name, got, tc.got)
		}
	}
}

// BenchmarkFull computes everything from nothing.
func BenchmarkFull(b *testing.B) {
	for _, size := range [][2]int{{10000, 2}, {10000, 10}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			o := many(size[0], size[1])
			for b.Loop() {
				w := newWorld(b, Config{}, b.TempDir())
				txn := w.DB.WriteTxn(w.Tables.Services, w.Tables.Slices)
				for _, s := range o.Services {
					w.Tables.Services.Insert(txn, s)
				}
				for _, s := range o.Slices {
					w.Tables.Slices.Insert(txn, s)
				}
				txn.Commit()
				w.round(w.follow)
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
			o := many(size[0], size[1])
			w := newWorld(b, Config{}, b.TempDir())
			w.set(b, o)
			parts := []*cluster.EndpointSlice{with(o.Slices[0], 5, drain), o.Slices[0]}
			i := 0
			for b.Loop() {
				w.put(b, parts[i%2])
				i++
			}
		})
	}
}
