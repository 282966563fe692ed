package bandwidth

import (
	"testing"
	"time"

	"myelin/bpf"
	"myelin/cluster"
)

func TestAnnotations(t *testing.T) {
	for text, want := range map[string]uint64{
		"10M": 10_000_000, "1k": 1_000, "1500": 1_500, "2G": 2_000_000_000, "1P": maxRate, "0.5M": 500_000,
		"1Mi": 1 << 20, "": 0, "999": 0, "-5M": 0, "2P": 0, "10MB": 0, "10 M": 0, "9999999999E": 0, "0": 0,
	} {
		pod := &cluster.Pod{Namespace: "demo", Name: "a", Annotations: map[string]string{cluster.EgressBandwidth: text}}
		r := annotationRates(pod)
		if r.egress != want || r.ingress != 0 || (len(r.problems) > 0) != (want == 0) {
			t.Errorf("%q: %+v, want %d", text, r, want)
		}
	}
	pod := &cluster.Pod{Namespace: "demo", Name: "a", Annotations: map[string]string{
		cluster.IngressBandwidth: "fast", cluster.EgressBandwidth: "5M",
	}}
	r := annotationRates(pod)
	const want = `Pod demo/a: metadata.annotations[kubernetes.io/ingress-bandwidth]: "fast" is no quantity of bits ` +
		`per second, such as 10M`
	if r.egress != 5_000_000 || len(r.problems) != 1 || r.problems[0] != want {
		t.Errorf("%+v, want the problem %s", r, want)
	}
	if r := annotationRates(&cluster.Pod{}); r.egress != 0 || len(r.problems) != 0 {
		t.Errorf("no annotations: %+v", r)
	}
}

func TestHorizon(t *testing.T) {
	for _, c := range []struct {
		bits  uint64
		paced bool
		want  time.Duration
	}{
		{1e6, true, 2 * time.Second}, {100e6, true, 167_772_160}, {10e9, true, 10 * time.Millisecond},
		{1e3, true, 2 * time.Second}, {1e6, false, 524_288_000}, {1e9, false, 10 * time.Millisecond},
	} {
		if got := horizon(c.bits/8, c.paced); got != c.want {
			t.Errorf("%d bit/s, paced %v: %s, want %s", c.bits, c.paced, got, c.want)
		}
	}
}

// What waits under an old limit keeps its time, and what follows may wait behind it.
func TestChangedLimit(t *testing.T) {
	const now = time.Hour
	old := entry(bpf.DatapathBandwidth{}, terms{1e6, true, 7}, now)
	if old.Rate != 125_000 || old.Paced != 1 || old.Priority != 7 || time.Duration(old.Horizon) != 2*time.Second {
		t.Errorf("new entry: %+v", old)
	}
	old.Next, old.Sent.Bytes = uint64(now+1500*time.Millisecond), 1000
	next := entry(old, terms{rate: 1e9, paced: true}, now)
	if want := horizon(125e6, true) + 1500*time.Millisecond; time.Duration(next.Horizon) != want ||
		next.Next != old.Next || next.Sent != old.Sent || next.Priority != 0 {
		t.Errorf("changed entry: %+v, want a horizon of %s and the rest of %+v", next, want, old)
	}
	later := entry(next, terms{rate: 1e9, paced: true}, now+2*time.Second)
	if time.Duration(later.Horizon) != horizon(125e6, true) {
		t.Errorf("horizon %d when nothing waits", later.Horizon)
	}
}

// While it is not known what the device has, nothing changes but the rate.
func TestPacing(t *testing.T) {
	for _, c := range []struct {
		pacing    pacing
		rate, old uint64
		was       bool
		want      uint64
		paced     bool
	}{
		{pacing{paced: true}, 5, 0, false, 5, true}, {pacing{}, 5, 0, false, 5, false},
		{pacing{pending: true}, 5, 0, false, 0, false}, {pacing{pending: true}, 5, 4, true, 5, true},
		{pacing{paced: true}, 0, 5, true, 0, false}, {pacing{pending: true}, 0, 5, true, 0, false},
	} {
		if limit, paced := c.pacing.apply(c.rate, c.old, c.was); limit != c.want || paced != c.paced {
			t.Errorf("%+v: %d, %v", c, limit, paced)
		}
	}
}
