package endpointslice

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"myelin/cluster"
	"myelin/internal/table"
)

// many makes Services and pods, of which each has the same number of Services
// and all are of both families. They have one label in common, as those of one
// chart do.
func many(services, pods int) (o objects) {
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00:1::1")
	for i := range services {
		o.Services = append(o.Services, &cluster.Service{
			Namespace: "x", Name: fmt.Sprintf("s%d", i), Type: "ClusterIP",
			Selector: map[string]string{"chart": "all", "app": fmt.Sprintf("s%d", i)},
			Ports:    []cluster.ServicePort{{Name: "http", Port: 80, Protocol: "TCP", TargetName: "http"}},
		})
	}
	for i := range pods {
		o.Pods = append(o.Pods, &cluster.Pod{
			Namespace: "x", Name: fmt.Sprintf("p%d", i), NodeName: fmt.Sprintf("n%d", i%100), Phase: "Running",
			Ready:     true,
			Labels:    map[string]string{"chart": "all", "app": fmt.Sprintf("s%d", i%services), "pod": fmt.Sprint(i)},
			Addresses: []netip.Addr{four, six},
			Ports:     []cluster.Port{{Name: "http", Number: 8080, Protocol: "TCP"}},
		})
		four, six = four.Next(), six.Next()
	}
	for i := range 100 {
		o.Nodes = append(o.Nodes, &cluster.Node{Name: fmt.Sprintf("n%d", i),
			Labels: map[string]string{zoneLabel: fmt.Sprintf("z%d", i%3)}})
	}
	return o
}

// put writes one pod, or deletes it, as a watch does.
func (w *world) put(t testing.TB, pod *cluster.Pod, deleted bool) {
	t.Helper()
	txn := w.DB.WriteTxn(w.Tables.Pods)
	write := w.Tables.Pods.Insert
	if deleted {
		write = w.Tables.Pods.Delete
	}
	if _, _, err := write(txn, pod); err != nil {
		t.Fatal(err)
	}
	txn.Commit()
	w.round(w.follow, new(table.Watch))
}

func notReady(pod *cluster.Pod) *cluster.Pod {
	c := *pod
	c.Ready = false
	return &c
}

// sizes are how many endpoints the slices of a family have, sorted.
func (w *world) sizes(family string) (sizes []int) {
	for row := range w.Tables.Slices.All(w.DB.ReadTxn()) {
		if row.AddressType == family {
			sizes = append(sizes, len(row.Endpoints))
		}
	}
	slices.Sort(sizes)
	return sizes
}

// A Service of 5,000 pods has slices of at most 100; one pod that changes
// rewrites one of a family, and one that makes a slice overflow, or two fit in
// one, three.
func TestShare(t *testing.T) {
	w := newWorld(t)
	o := many(1, 5000)
	w.set(t, o)
	sizes, sum := w.sizes("IPv4"), 0
	for _, n := range sizes {
		sum += n
	}
	if sum != 5000 || sizes[len(sizes)-1] > maxEndpoints || len(sizes) > 128 {
		t.Errorf("got %d endpoints in %d slices of %v", sum, len(sizes), sizes)
	}
	before := w.DB.ReadTxn()
	w.put(t, notReady(o.Pods[4321]), false)
	if n := w.written(before); n != 2 {
		t.Errorf("wrote %d slices for a pod that is not ready any more, want one a family", n)
	}
	w.set(t, many(1, maxEndpoints))
	for _, step := range []struct {
		name    string
		deleted bool
		sizes   int
	}{{"one more than fits", false, 2}, {"back", true, 1}} {
		before, extra := w.DB.ReadTxn(), many(1, maxEndpoints+1).Pods[maxEndpoints]
		w.put(t, extra, step.deleted)
		if n := w.written(before); n != 6 || len(w.sizes("IPv6")) != step.sizes {
			t.Errorf("%s: wrote %d slices, want three a family; there are %v", step.name, n, w.sizes("IPv6"))
		}
	}
	w.set(t, objects{})
	if got := w.dump(); got != "" {
		t.Errorf("left %s", got)
	}
}

// Names are the same on all nodes and in all versions: they outlive an upgrade
// of one node. They are no names of objects, which must not be overwritten.
func TestNames(t *testing.T) {
	w := newWorld(t)
	w.set(t, many(1, maxEndpoints+1))
	var names []string
	for row := range w.Tables.Slices.All(w.DB.ReadTxn()) {
		names = append(names, row.Name)
		if row.Source != "made from Service x/s0" {
			t.Errorf("%s has source %q", row.Name, row.Source)
		}
	}
	slices.Sort(names)
	if got, want := strings.Join(names, " "), "s0:ipv4:f814b24dfa69a688:0 s0:ipv4:f814b24dfa69a688:1 "+
		"s0:ipv6:f814b24dfa69a688:0 s0:ipv6:f814b24dfa69a688:1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What is made depends on the objects, and not on what was there before or on
// the order of changes.
func TestHistoryDoesNotMatter(t *testing.T) {
	const rounds = 300
	random := rand.New(rand.NewPCG(1, 2))
	w := newWorld(t)
	var o objects
	for i := range rounds {
		if change(random, &o); random.IntN(3) == 0 {
			continue // several changes at once
		}
		w.set(t, o)
		fresh := newWorld(t)
		fresh.set(t, o)
		if got, want := sorted(w.dump()), sorted(fresh.dump()); got != want {
			t.Fatalf("round %d: got\n%s\nwant\n%s", i, got, want)
		}
	}
	if len(w.sizes("IPv4")) == 0 {
		t.Error("ends with no slices: nothing was tried")
	}
}

// change adds, replaces or removes one object of few names.
func change(random *rand.Rand, o *objects) {
	letter := func(n int) string { return string(rune('a' + random.IntN(n))) }
	labels := map[string]string{"app": letter(2)}
	if random.IntN(2) == 0 {
		labels["tier"] = letter(2)
	}
	namespace, drop := letter(2), random.IntN(4) == 0
	switch random.IntN(8) {
	case 0:
		n := &cluster.Node{Name: letter(3), Labels: map[string]string{zoneLabel: letter(2)}}
		o.Nodes = with(o.Nodes, n, drop, func(n *cluster.Node) string { return n.Name })
	case 1, 2:
		s := &cluster.Service{
			Namespace: namespace, Name: letter(4), Type: "ClusterIP", Selector: labels,
			PublishNotReady: random.IntN(4) == 0,
			Ports: []cluster.ServicePort{{Port: 80, Protocol: "TCP",
				TargetName: []string{"", "http"}[random.IntN(2)]}},
		}
		o.Services = with(o.Services, s, drop, func(s *cluster.Service) string { return s.Key().String() })
	case 3:
		s := &cluster.EndpointSlice{Namespace: namespace, Name: letter(2), Service: letter(8), AddressType: "FQDN"}
		o.Slices = with(o.Slices, s, drop, func(s *cluster.EndpointSlice) string { return s.Key().String() })
	default:
		p := &cluster.Pod{
			Namespace: namespace, Name: letter(6), NodeName: letter(3), Labels: labels, Phase: "Running",
			Ready:     random.IntN(2) == 0,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + random.IntN(9))})},
			Ports:     []cluster.Port{{Name: "http", Number: uint16(8080 + random.IntN(2)), Protocol: "TCP"}},
		}
		o.Pods = with(o.Pods, p, drop, func(p *cluster.Pod) string { return p.Key().String() })
	}
}

func with[R any](rows []*R, row *R, drop bool, key func(*R) string) []*R {
	rows = slices.DeleteFunc(slices.Clone(rows), func(o *R) bool { return key(o) == key(row) })
	if drop {
		return rows
	}
	return append(rows, row)
}

// BenchmarkFull makes all slices from nothing.
func BenchmarkFull(b *testing.B) {
	o := many(10000, 20000)
	for b.Loop() {
		newWorld(b).set(b, o)
	}
}

// BenchmarkOne changes one pod of many.
func BenchmarkOne(b *testing.B) {
	for _, size := range [][2]int{{1000, 2000}, {10000, 20000}, {1, 5000}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			o := many(size[0], size[1])
			w := newWorld(b)
			w.set(b, o)
			pods := []*cluster.Pod{notReady(o.Pods[5]), o.Pods[5]}
			i := 0
			for b.Loop() {
				before := w.DB.ReadTxn()
				w.put(b, pods[i%2], false)
				if i++; i == 1 && w.written(before) != 2 {
					b.Fatalf("wrote %d slices, want one a family", w.written(before))
				}
			}
		})
	}
}

// BenchmarkNew adds a Service to many pods.
func BenchmarkNew(b *testing.B) {
	o := many(10000, 20000)
	w := newWorld(b)
	w.set(b, o)
	row := *o.Services[7]
	row.Name = "new"
	insert := true
	for b.Loop() {
		txn := w.DB.WriteTxn(w.Tables.Services)
		if insert {
			w.Tables.Services.Insert(txn, &row)
		} else {
			w.Tables.Services.Delete(txn, &row)
		}
		insert = !insert
		txn.Commit()
		w.round(w.follow, new(table.Watch))
	}
}
