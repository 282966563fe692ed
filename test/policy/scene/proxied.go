package scene

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	"myelin/policy"
	"myelin/policy/compile"
	"myelin/test/policy/pick"
)

// names are those that addresses may have.
func names() []string { return []string{"a.example", "b.example", "a.b.example", "other"} }

// randomNames are patterns of names.
func randomNames(r *rand.Rand) (out []policy.NamePattern) {
	for range 1 + r.IntN(2) {
		out = append(out, pick.Of(r, []policy.NamePattern{{Name: "a.example"}, {Name: "other"}, {Pattern: "*.example"},
			{Pattern: "**.example"}, {Pattern: "*"}}))
	}
	policy.SortNames(out)
	return slices.Compact(out)
}

// randomL7 is what the proxy enforces.
func randomL7(r *rand.Rand) *policy.L7 {
	return pick.Of(r, []*policy.L7{
		{HTTP: []policy.HTTPRule{{Path: "/a"}}}, {HTTP: []policy.HTTPRule{{Path: "/b", Method: "GET"}, {Path: "/c"}}},
		{DNS: []policy.NamePattern{{Pattern: "*.example"}}}, {ServerNames: []string{"a.example"}},
	})
}

// partsOf are the origins of a number of the proxy, sorted, each once.
func partsOf(c *compile.Compiler, number uint32) (out []string) {
	for _, p := range c.ProxyParts(number) {
		out = append(out, p.Origin.String())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// checkProxied compares which rules the proxy enforces.
func (w *Scene) checkProxied(c *compile.Compiler, of *Party, dir policy.Direction, peer *Party, a netip.Addr,
	proto uint8, port uint16, got compile.PortVerdict, what string) {
	w.T.Helper()
	want := w.NaiveNamed(of, dir, peer, a, nil, proto, port)
	parts := partsOf(c, got.Rule)
	if got.Proxy != (want.Proxied != nil) || got.Proxy && !slices.Equal(parts, want.Proxied) {
		w.T.Fatalf("%s: %s %s %s (%s) %d/%d: rule %d, the proxy enforces %q, want %q", what, of.Name, dir, peer.Name, a,
			proto, port, got.Rule, parts, want.Proxied)
	}
}

// checkNamed compares what holds for an address outside the cluster that has names. Rules of the proxy for names are
// not put together with those for the address itself, nor with those of other selectors; and rules for the address
// itself of the tier baseline come before those for its names.
func (w *Scene) checkNamed(c *compile.Compiler, r *rand.Rand, of, peer *Party, a netip.Addr, proto uint8, port uint16,
	what string) {
	w.T.Helper()
	has := []string{pick.Of(r, names()), pick.Of(r, names())}
	got := c.LookupNamed(of.Slot, a, c.SelectorsOf(has), proto, port)
	want := w.NaiveNamed(of, policy.Egress, peer, a, has, proto, port)
	if w.NaiveNamed(of, policy.Egress, peer, a, nil, proto, port).Baseline {
		return
	}
	parts := partsOf(c, got.Rule)
	foreign := func(origin string) bool { return !slices.Contains(want.Proxied, origin) }
	if got.Verdict != want.Verdict || got.Proxy != (want.Proxied != nil) || got.Proxy && (len(parts) == 0 ||
		slices.ContainsFunc(parts, foreign)) {
		w.T.Fatalf("%s: egress of %s to %s, named %q, %d/%d: got %+v, of the proxy %q, want %+v", what, of.Name, a, has,
			proto, port, got, parts, want)
	}
}
