package status

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"myelin/endpoint"
	"myelin/ipam"
)

// TestWaiting: an agent that waits says for what, since when and what would help, and nothing that it can't know.
func TestWaiting(t *testing.T) {
	f := good(t)
	f.Ready = 0
	f.Waiting = &Waiting{Part: "own node", Since: begin().Add(10 * time.Second),
		Reason: "no Node object named node1 in /m; seen: node2", Help: "add it"}
	r := Explain(f)
	if r.State != Broken || r.Waiting == nil || len(r.Features) != 6 {
		t.Errorf("%s, waiting %+v, features %+v", r.State, r.Waiting, r.Features)
	}
	var b strings.Builder
	if err := r.Render(&b, Style{Width: 100}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Myelin:               [broken] waiting for 50s, since 2026-03-01T12:00:10Z, at: own node",
		"- no Node object named node1 in /m; seen: node2", "- what would help: add it", "Broken: Myelin",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if f.Waiting.Reason = ""; !strings.Contains(
		Explain(f).Feature("Myelin").Chosen, "starting for 1m0s, at: own node") {
		t.Errorf("%+v", Explain(f).Feature("Myelin"))
	}
	if f.Ready = time.Second; Explain(f).Waiting != nil {
		t.Error("an agent that is ready waits")
	}
}

// TestChanges: what changed under a running agent is told.
func TestChanges(t *testing.T) {
	addrs := func(text string) (list []netip.Addr) {
		for _, a := range strings.Fields(text) {
			list = append(list, netip.MustParseAddr(a))
		}
		return list
	}
	for name, c := range map[string]struct {
		change  func(*Facts)
		feature string
		state   State
		want    string
	}{
		"reloaded": {func(f *Facts) { f.Reloads, f.ReloadWhy, f.ReloadAt = 1, "device", begin() }, "Myelin", OK,
			"reloaded once, last at 2026-03-01T12:00:00Z: device"},
		"reloaded again": {func(f *Facts) { f.Reloads = 2 }, "Myelin", OK, "reloaded 2 times"},
		"conflict": {
			func(f *Facts) { f.PodCIDRs = &ipam.Assignment{Problem: "overlaps"} }, "IPAM", Broken, "overlaps",
		},
		"podCIDRs are gone": {
			func(f *Facts) {
				f.PodCIDRs, f.Pools = &ipam.Assignment{Problem: "Node node1 has no podCIDR any more"}, nil
			}, "IPAM", Broken, "no podCIDR any more",
		},
		"outside": {func(f *Facts) { f.Outside = addrs("10.0.9.2 fd00:9::2") }, "IPAM", Fallback,
			"10.0.9.2, fd00:9::2"},
		"many outside": {func(f *Facts) { f.Outside = addrs("10.0.9.2 10.0.9.3 10.0.9.4 10.0.9.5 10.0.9.6") }, "IPAM",
			Fallback, "10.0.9.4, 2 more"},
		"a stray": {
			func(f *Facts) { f.Strays = []endpoint.Stray{{Name: "myeaaaaaaaa", Index: 7, Pod: true}} },
			"Endpoints", Broken,
			"pod link myeaaaaaaaa (index 7) belongs to no endpoint: the state of its pod was lost; delete the pod",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := good(t)
			c.change(&f)
			x := Explain(f).Feature(c.feature)
			if text := x.Chosen + "\n" + strings.Join(x.Problems, "\n"); x.State != c.state ||
				!strings.Contains(text, c.want) {
				t.Errorf("%+v, want %s with %q", x, c.state, c.want)
			}
		})
	}
}
