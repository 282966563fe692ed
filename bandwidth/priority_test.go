package bandwidth

import (
	"slices"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/cluster"
)

// Classes of Cilium are read as Cilium does, without regard to case and hyphens.
func TestPriority(t *testing.T) {
	for text, want := range map[string]struct {
		name string
		mark uint32
	}{
		"guaranteed": {"guaranteed", 7}, "Burstable": {"burstable", 9}, "BestEffort": {"best-effort", 6},
		"best-effort": {"best-effort", 6}, "0": {"0", 1}, "15": {"15", 16}, "16": {}, "-1": {}, "": {}, "high": {},
		"65537": {},
	} {
		pod := &cluster.Pod{Namespace: "demo", Name: "a", Annotations: map[string]string{cluster.NetworkPriority: text}}
		r := annotationRates(pod)
		if r.priority != want.name || mark(r.priority) != want.mark || (len(r.problems) > 0) != (want.mark == 0) {
			t.Errorf("%q: %+v, mark %d, want %+v", text, r, mark(r.priority), want)
		}
	}
}

// A priority alone is an entry without a limit, of what the pod sends.
func TestPriorityAlone(t *testing.T) {
	l := &Limit{ID: 3, Pod: "demo/a", Priority: "best-effort", Ingress: 8000, IngressPaced: true}
	if got := entry(bpf.DatapathBandwidth{}, terms{priority: mark(l.Priority)}, time.Hour); got.Rate != 0 ||
		got.Horizon != 0 || got.Priority != 6 {
		t.Errorf("entry %+v", got)
	}
	views := l.views()
	if len(views) != 2 || views[0].Direction != "egress" || views[0].Priority != l.Priority || views[0].Mode != "-" ||
		views[1].Priority != "" || views[1].Mode != "EDT" {
		t.Errorf("views %+v, %+v", views[0], views[len(views)-1])
	}
}

// What status says of priorities that do not apply.
func TestLostPriorities(t *testing.T) {
	wire := &Qdisc{Device: "eth0", Wire: true, Found: "fq", Bands: true}
	old := &Qdisc{Device: "eth1", Wire: true, Found: "mq with fq"}
	link := &Qdisc{Device: "my1", Found: "fq"}
	unknown := &Qdisc{Device: "eth2", Wire: true}
	if got := lostPriorities(false, false, []*Qdisc{wire, link, unknown}); len(got) != 0 {
		t.Errorf("problems %q, want none", got)
	}
	got := lostPriorities(true, true, []*Qdisc{wire, old, link})
	want := []string{"IPv4 packets lose them where the kernel routes (bpf.hostLegacyRouting)",
		"packets lose them where WireGuard encrypts", "eth1 has no fq with bands (kernel 6.7)"}
	if !slices.Equal(got, want) {
		t.Errorf("problems %q, want %q", got, want)
	}
}
