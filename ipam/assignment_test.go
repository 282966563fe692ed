package ipam

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func parse(t testing.TB, text string) (list []netip.Prefix) {
	t.Helper()
	for _, p := range strings.Fields(text) {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

// TestDecide: rows say what is in force and which gateways pods have.
func TestDecide(t *testing.T) {
	first := "10.0.1.0/24 fd00:1::/64"
	for name, c := range map[string]struct {
		wanted, before, gateways string // gateways: of before, else the first ones of before
		pods                     bool
		others                   []Other
		inForce, want, problem   string
	}{
		"the first time": {wanted: first, inForce: first, want: "10.0.1.1 fd00:1::1"},
		"growing keeps the gateways": {
			wanted: "10.0.9.0/24 fd00:9::/64 " + first, before: first, inForce: "10.0.9.0/24 fd00:9::/64 " + first,
			want: "10.0.1.1 fd00:1::1",
		},
		"with pods, a change keeps the gateways": {
			wanted: "10.0.9.0/24 fd00:9::/64", before: first, pods: true, inForce: "10.0.9.0/24 fd00:9::/64",
			want: "10.0.1.1 fd00:1::1",
		},
		"without, they follow": {wanted: "10.0.9.0/24 fd00:9::/64", before: first,
			inForce: "10.0.9.0/24 fd00:9::/64", want: "10.0.9.1 fd00:9::1"},
		"a family comes": {wanted: first, before: "10.0.1.0/24", pods: true, inForce: first,
			want: "10.0.1.1 fd00:1::1"},
		"nothing is left": {before: first, pods: true, want: "10.0.1.1 fd00:1::1",
			problem: "Node n1 has no podCIDR any more"},
		"nothing is left, and no pods": {before: first, want: "10.0.1.1 fd00:1::1", problem: "new ones get none"},
		"another node has it": {
			wanted: "10.0.2.0/24", before: first, others: []Other{{"n2", parse(t, "fd00:2::/64 10.0.0.0/22")}},
			inForce: first, want: "10.0.1.1 fd00:1::1",
			problem: "podCIDR 10.0.2.0/24 of Node n1 overlaps 10.0.0.0/22 of Node n2: 10.0.1.0/24 fd00:1::/64 stays " +
				"in force",
		},
		"another node has it from the start": {
			wanted: first, others: []Other{{"n2", parse(t, "fd00:1::/80")}}, inForce: first, want: "10.0.1.1 fd00:1::1",
			problem: "podCIDR fd00:1::/64 of Node n1 overlaps fd00:1::/80 of Node n2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := Question{Node: "n1", Wanted: parse(t, c.wanted), Others: c.others, Pods: c.pods}
			if c.before != "" {
				q.Before = Decide(Question{Node: "n1", Wanted: parse(t, c.before)})
			}
			got := Decide(q)
			if join(got.InForce) != c.inForce || join(got.Gateways()) != c.want ||
				!strings.Contains(got.Problem, c.problem) ||
				(c.problem == "") != (got.Problem == "") {
				t.Errorf("got %q, want %s, gateways %s, problem %q", got.TableRow(), c.inForce, c.want, c.problem)
			}
		})
	}
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "podcidrs.json")
	if a, err := Load(path); a != nil || err != nil {
		t.Errorf("no file: %v, %v", a, err)
	}
	want := Decide(Question{Node: "n1", Wanted: parse(t, "10.0.1.0/24 fd00:1::/64")})
	if err := want.Save(path); err != nil {
		t.Fatal(err)
	}
	if got, err := Load(path); err != nil || !got.Equal(want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, bad := range []string{"{", `{"inForce":["10.0.1.0/31"]}`, `{"gateway4":"x"}`} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if a, err := Load(path); err == nil || a != nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, %v", bad, a, err)
		}
	}
}

// TestSet changes the podCIDRs under pods that run.
func TestSet(t *testing.T) {
	al := mustNew(t, "10.0.1.0/24", "fd00:1::/64")
	allocate := func(owner, want4, want6 string) {
		t.Helper()
		v4, v6, err := al.Allocate(owner, nil)
		if err != nil || v4.String() != want4 || v6.String() != want6 {
			t.Errorf("%s got %s %s %v, want %s %s", owner, v4, v6, err, want4, want6)
		}
	}
	set := func(prefixes, gateways, outside string) {
		t.Helper()
		var list []netip.Addr
		for _, g := range strings.Fields(gateways) {
			list = append(list, netip.MustParseAddr(g))
		}
		if err := al.Set(parse(t, prefixes), list...); err != nil {
			t.Fatal(err)
		}
		var got []string
		for a, owner := range al.Outside() {
			got = append(got, owner+"="+a.String())
		}
		slices.Sort(got)
		if text := strings.Join(got, " "); text != outside {
			t.Errorf("outside of %s: %s, want %s", prefixes, text, outside)
		}
	}
	allocate("a", "10.0.1.2", "fd00:1::2")
	allocate("b", "10.0.1.3", "fd00:1::3")
	al.Release("b")
	// It grows: the place in the turn stays.
	set("10.0.1.0/24 fd00:1::/64 10.0.9.0/30 fd00:9::/64", "", "")
	allocate("c", "10.0.1.4", "fd00:1::4")
	// It changes: those in use stay, and come back into what holds them again.
	set("10.0.9.0/30 fd00:9::/64", "10.0.1.1 fd00:1::1", "a=10.0.1.2 a=fd00:1::2 c=10.0.1.4 c=fd00:1::4")
	allocate("d", "10.0.9.2", "fd00:9::2")
	al.Release("c")
	set("10.0.0.0/23 fd00::/16", "10.0.1.1 fd00:1::1", "d=10.0.9.2")
	for _, u := range al.Dump() {
		if u.Owners[netip.MustParseAddr("10.0.1.1")]+u.Owners[netip.MustParseAddr("fd00:1::1")] != gatewayOwner {
			t.Errorf("%s: the pods' gateway can be handed out: %v", u.Prefix, u.Owners)
		}
	}
	for _, owner := range []string{"a", "d"} {
		al.Release(owner)
	}
	set("", "", "")
	if _, _, err := al.Allocate("f", nil); err == nil || !strings.Contains(err.Error(), "no podCIDR") {
		t.Errorf("without a podCIDR: %v", err)
	}
}

// TestSetRefused: what can't be put in force changes nothing.
func TestSetRefused(t *testing.T) {
	al := mustNew(t, "10.0.0.0/23", "fd00::/16")
	if _, _, err := al.Allocate("a", nil); err != nil {
		t.Fatal(err)
	}
	before := al.Dump()
	for prefixes, want := range map[string]string{
		"10.0.1.0/24 10.0.1.0/30":     "overlaps",
		"10.0.1.1/24":                 "host bits",
		"fd00:1::1:0/112 10.0.1.0/31": "a /30 is the least",
	} {
		if err := al.Set(parse(t, prefixes)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", prefixes, err, want)
		}
	}
	if err := al.Claim("e", netip.MustParseAddr("10.7.0.1")); !errors.Is(err, ErrOutside) {
		t.Error(err)
	}
	if err := al.Set(parse(t, "10.7.0.0/24")); err == nil || !strings.Contains(err.Error(),
		"its gateway 10.7.0.1 is the address of e") {
		t.Errorf("a pod has the gateway's address: %v", err)
	}
	if after := al.Dump(); len(after) != len(before) || after[0].Prefix != before[0].Prefix ||
		after[0].InUse != before[0].InUse {
		t.Errorf("%+v became %+v", before, after)
	}
	al.Release("e")
	if err := al.Set(parse(t, "10.7.0.0/24")); err != nil {
		t.Error(err)
	}
}
