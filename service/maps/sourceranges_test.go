package maps

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"myelin/bpf"
	"myelin/cluster/clustertest"
	"myelin/service"
	"myelin/service/servicetest"
)

// balancer is a Service whose LoadBalancer address is restricted to ranges; "" is unrestricted.
func balancer(t *testing.T, v6 bool, backends int, ranges string) clustertest.Objects {
	t.Helper()
	o := clustertest.Parse(t, servicetest.SizedAs(v6, backends, 0, "1", "Cluster", "", "10.0.0.0/8"))
	o.Services[0].SourceRanges = nil
	if ranges != "" {
		o = clustertest.Parse(t, servicetest.SizedAs(v6, backends, 0, "1", "Cluster", "", ranges))
	}
	return o
}

// asking reports whether the LoadBalancer frontend checks source ranges, and how many rows there are.
func (r *rig) asking(t *testing.T) (asks bool, may int) {
	t.Helper()
	each(t, r.datapath.Frontends, func(key *bpf.DatapathFrontendKey, f *bpf.DatapathFrontend) {
		asks = asks || !isAddress(key) && f.Flags&rangesFlag != 0
	})
	each(t, r.datapath.SourceRanges, func(*bpf.DatapathSourceRangeKey, *uint32) { may++ })
	return asks, may
}

// A Service that becomes restricted is never open to more than its ranges, also if some cannot be written. The status
// of its row says what is missing; the rest is written when there is room.
func TestRangesFailClosed(t *testing.T) {
	const three = "10.0.0.0/8, 192.0.2.0/24, 2001:db8::/32"
	for _, v6 := range []bool{false, true} {
		sizes := small()
		sizes["source_ranges"] = 2
		r := newRig(t, service.Config{}, sizes)
		full := func(when string, want int) {
			t.Helper()
			err := r.sync()
			if err == nil || !strings.Contains(err.Error(), "map source_ranges is full: it has room for 2 rows") {
				t.Errorf("%s: got %v", when, err)
			}
			if asks, may := r.asking(t); !asks || may != want {
				t.Errorf("%s: asks %t, %d ranges, want %d", when, asks, may, want)
			}
			r.counted(t)
		}
		r.Set(t, balancer(t, v6, 3, ""))
		if err := r.sync(); err != nil {
			t.Fatal(err)
		}
		if asks, may := r.asking(t); asks || may != 0 {
			t.Errorf("open: asks %t, %d ranges", asks, may)
		}
		r.Set(t, balancer(t, v6, 3, three))
		full("restricted", 2)
		r.Set(t, balancer(t, v6, 3, "10.9.0.0/16, 10.8.0.0/16, 10.7.0.0/16"))
		full("others", 2)
		r.Set(t, balancer(t, v6, 3, "10.6.0.0/16, 10.5.0.0/16"))
		if err := r.sync(); err != nil {
			t.Errorf("two that have room when others go: %v", err)
		}
		if got, want := r.maps(t), r.rows(); got != want {
			t.Errorf("got\n%s\nthe tables say\n%s", got, want)
		}
	}
}

// Nor is it open while its sets can't be written.
func TestRangesFirst(t *testing.T) {
	for _, op := range []string{"put source_ranges", "put backend_slots", "put backends"} {
		r := newRig(t, service.Config{}, small())
		r.Set(t, balancer(t, false, 3, ""))
		if err := r.sync(); err != nil {
			t.Fatal(err)
		}
		r.Set(t, balancer(t, false, 40, "10.0.0.0/8"))
		var done []string
		r.before = func(did string) error {
			if did == op {
				return errors.New("no")
			}
			done = append(done, did)
			return nil
		}
		if err := r.sync(); err == nil {
			t.Errorf("%s failed, and no error", op)
		}
		asks, may := r.asking(t)
		if want := map[bool]int{true: 0, false: 1}[op == "put source_ranges"]; !asks || may != want {
			t.Errorf("%s failed: asks %t, %d ranges, want %d; did %v", op, asks, may, want, done)
		}
		if at := slices.Index(done, "put frontends"); op != "put source_ranges" &&
			at < slices.Index(done, "put source_ranges") {
			t.Errorf("asked before ranges were there: %v", done)
		}
		r.before = nil
		r.counted(t)
	}
}
