package status

import (
	"slices"
	"testing"
	"time"

	"myelin/cluster"
)

// TestAPIServer: an API server, as it is when all is well, away, or not allowed.
func TestAPIServer(t *testing.T) {
	const chosen = "API server https://192.0.2.1:6443, synced, heard of 3s ago: 2 Node, 1 NetworkPolicy; not " +
		"installed: CiliumNetworkPolicy"
	for name, c := range map[string]struct {
		change func(*Facts)
		state  State
		want   []string
	}{
		"well": {func(*Facts) {}, OK, []string{chosen}},
		"away": {
			func(f *Facts) { f.Server.Problem, f.Server.Since = "connection refused", f.Now.Add(-time.Minute) }, Broken,
			[]string{chosen, "no answer for 1m0s, since 2026-03-01T12:00:00Z: connection refused"},
		},
		"forbidden": {
			func(f *Facts) { f.Server.Synced, f.Server.Kinds[0].Problem = false, "forbidden" }, Broken,
			[]string{"API server https://192.0.2.1:6443, not synced, heard of 3s ago: 2 Node, 1 NetworkPolicy; not " +
				"installed: CiliumNetworkPolicy", "Node can't be listed: forbidden"},
		},
		"refused": {
			func(f *Facts) {
				f.Problems = []*cluster.Problem{{File: "kubernetes", Object: "NetworkPolicy a/b", Field: "spec",
					Reason: "is wrong"}}
			}, Broken, []string{chosen, "refused: kubernetes: NetworkPolicy a/b: spec: is wrong"},
		},
		"by its Service": {
			func(f *Facts) { f.Server.ByService, f.Config.KubeProxyReplacement = true, true }, Fallback,
			[]string{chosen, "k8sServiceHost is not set: the server is asked at the address of its Service"},
		},
	} {
		f := good(t)
		f.Problems, f.Now = nil, time.Date(2026, 3, 1, 12, 1, 0, 0, time.UTC)
		f.Server = &APIServer{
			Address: "https://192.0.2.1:6443", Synced: true, LastContact: f.Now.Add(-3 * time.Second),
			Kinds: []Kind{{Name: "Node", Objects: 2}, {Name: "NetworkPolicy", Objects: 1},
				{Name: "CiliumNetworkPolicy", Missing: true}},
		}
		c.change(&f)
		x := f.cluster()
		if got := append([]string{x.Chosen}, x.Problems...); x.State != c.state || !slices.Equal(got, c.want) {
			t.Errorf("%s: %s %q, want %s %q", name, x.State, got, c.state, c.want)
		}
	}
}
