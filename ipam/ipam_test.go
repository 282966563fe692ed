package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

func mustNew(t testing.TB, prefixes ...string) *Allocator {
	t.Helper()
	var parsed []netip.Prefix
	for _, p := range prefixes {
		parsed = append(parsed, netip.MustParsePrefix(p))
	}
	al, err := New(parsed...)
	if err != nil {
		t.Fatal(err)
	}
	return al
}

// TestReserved uses up small prefixes and names every address that may be
// handed out, in order.
func TestReserved(t *testing.T) {
	for _, tt := range []struct{ prefix, want, full string }{
		{"10.0.0.0/30", "10.0.0.2", "podCIDR 10.0.0.0/30: all 1 addresses in use"},
		{"10.0.0.8/29", "10.0.0.10 10.0.0.11 10.0.0.12 10.0.0.13 10.0.0.14",
			"podCIDR 10.0.0.8/29: all 5 addresses in use"},
		{"fd00::/126", "fd00::2 fd00::3", "podCIDR fd00::/126: all 2 addresses in use"},
		{"fd00::8/125", "fd00::a fd00::b fd00::c fd00::d fd00::e fd00::f",
			"podCIDR fd00::8/125: all 6 addresses in use"},
	} {
		al := mustNew(t, tt.prefix)
		var got []string
		var err error
		for i := 0; i < 16 && err == nil; i++ {
			var v4, v6 netip.Addr
			if v4, v6, err = al.Allocate(fmt.Sprint("pod", i), nil); err != nil {
				break
			}
			if !v4.IsValid() {
				v4 = v6
			}
			got = append(got, v4.String())
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("%s: handed out %s, want %s", tt.prefix, s, tt.want)
		}
		if !errors.Is(err, ErrExhausted) || !strings.HasSuffix(err.Error(), tt.full) {
			t.Errorf("%s: error %v, want ErrExhausted ending in %q", tt.prefix, err, tt.full)
		}
	}
}

func TestSlash24Has253(t *testing.T) {
	al := mustNew(t, "10.0.1.0/24")
	seen := map[netip.Addr]bool{}
	for i := range 253 {
		v4, v6, err := al.Allocate(fmt.Sprint(i), nil)
		if err != nil {
			t.Fatal(err)
		}
		if v6.IsValid() || seen[v4] {
			t.Fatalf("address %d: %s, %s: wrong family or twice", i, v4, v6)
		}
		seen[v4] = true
	}
	if _, _, err := al.Allocate("more", nil); err == nil || !strings.Contains(err.Error(),
		"podCIDR 10.0.1.0/24: all 253 addresses in use") {
		t.Fatalf("got %v", err)
	}
}

// TestRest checks that a released address comes back last.
func TestRest(t *testing.T) {
	al := mustNew(t, "10.0.0.0/29", "fd00::/125")
	first, _, _ := al.Allocate("a", nil)
	al.Release("a")
	al.Release("a")
	for i := range 4 {
		if v4, v6, err := al.Allocate(fmt.Sprint(i), nil); err != nil || v4 == first {
			t.Fatalf("allocation %d: %s %s %v", i, v4, v6, err)
		}
	}
	if v4, _, err := al.Allocate("last", nil); err != nil || v4 != first {
		t.Fatalf("got %s %v, want %s again", v4, err, first)
	}
}

func TestBothOrNeither(t *testing.T) {
	al := mustNew(t, "10.0.0.0/24", "fd00::/126")
	for _, owner := range []string{"a", "b"} {
		if v4, v6, err := al.Allocate(owner, nil); err != nil || !v4.Is4() || !v6.Is6() {
			t.Fatalf("%s: %s %s %v", owner, v4, v6, err)
		}
	}
	if _, _, err := al.Allocate("c", nil); !errors.Is(err, ErrExhausted) {
		t.Fatalf("got %v", err)
	}
	if d := al.Dump(); d[0].InUse != 2 || d[1].InUse != 2 {
		t.Fatalf("an allocation that failed left addresses: %+v", d)
	}
	if _, _, err := al.Allocate("a", nil); err == nil || errors.Is(err, ErrExhausted) {
		t.Fatalf("an owner got a second pair: %v", err)
	}
}

func TestSeveralPrefixes(t *testing.T) {
	al := mustNew(t, "10.0.0.0/30", "10.0.9.0/30")
	a, _, _ := al.Allocate("a", nil)
	b, _, err := al.Allocate("b", nil)
	if a.String() != "10.0.0.2" || b.String() != "10.0.9.2" || err != nil {
		t.Fatalf("%s %s %v", a, b, err)
	}
	_, _, err = al.Allocate("c", nil)
	for _, p := range []string{"10.0.0.0/30", "10.0.9.0/30"} {
		if err == nil || !strings.Contains(err.Error(), "podCIDR "+p) {
			t.Errorf("%v does not name %s", err, p)
		}
	}
}

func TestClaim(t *testing.T) {
	al := mustNew(t, "10.0.0.0/29", "fd00::/64")
	addr := netip.MustParseAddr
	for range 2 {
		if err := al.Claim("a", addr("10.0.0.3")); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ owner, addr, want string }{
		{"b", "10.0.0.3", "in use by a"},
		{"a", "10.0.0.4", "already holds 10.0.0.3"},
		{"b", "10.0.0.1", "reserved in podCIDR 10.0.0.0/29 as its gateway"},
		{"b", "fd00::1", "reserved in podCIDR fd00::/64 as its gateway"},
		{"network", "10.0.0.0", "reserved in podCIDR 10.0.0.0/29: " + ErrOutside.Error()},
		{"broadcast", "10.0.0.7", ErrOutside.Error()},
		{"network", "fd00::", ErrOutside.Error()},
		{"out", "10.0.0.8", ErrOutside.Error()},
		{"out", "10.0.0.9", "already holds 10.0.0.8"},
		{"too", "10.0.0.8", "in use by out"},
		{"out", "fd01::2", ErrOutside.Error()},
	} {
		if err := al.Claim(tt.owner, addr(tt.addr)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("claim %s for %s: %v, want %q", tt.addr, tt.owner, err, tt.want)
		}
	}
	if err := al.Claim("a", addr("fd00::ffff:0:0:5")); err != nil {
		t.Fatal(err)
	}
	// What was released just before the restart was most likely lower.
	if v4, v6, err := al.Allocate("n", nil); err != nil || v4 != addr("10.0.0.4") || v6 != addr("fd00::ffff:0:0:6") {
		t.Fatalf("%s %s %v", v4, v6, err)
	}
	al.Release("a")
	if err := al.Claim("b", addr("10.0.0.3")); err != nil {
		t.Fatal(err)
	}
}

func TestRefused(t *testing.T) {
	for _, tt := range []struct{ prefixes, want string }{
		{"10.0.0.0/31", "a /30 is the least"},
		{"10.0.0.1/32", "a /30 is the least"},
		{"fd00::/127", "a /126 is the least"},
		{"10.0.0.1/24", "host bits are set, write 10.0.0.0/24"},
		{"::ffff:10.0.0.0/120", "not an IPv4 or IPv6 prefix"},
		{"10.0.0.0/16 10.0.3.0/24", "podCIDR 10.0.3.0/24: overlaps podCIDR 10.0.0.0/16"},
	} {
		var prefixes []netip.Prefix
		for _, p := range strings.Fields(tt.prefixes) {
			prefixes = append(prefixes, netip.MustParsePrefix(p))
		}
		if _, err := New(prefixes...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New(%s): %v, want %q", tt.prefixes, err, tt.want)
		}
	}
	if _, _, err := mustNew(t).Allocate("a", nil); err == nil || !strings.Contains(err.Error(), "no podCIDR") {
		t.Errorf("allocator without prefixes: %v", err)
	}
}

// TestConcurrent lets many owners come and go at once; no address may have two.
func TestConcurrent(t *testing.T) {
	al := mustNew(t, "10.0.0.0/24", "fd00::/64")
	var mu sync.Mutex
	live := map[netip.Addr]string{}
	var wg sync.WaitGroup
	for g := range 50 {
		wg.Go(func() {
			owner := fmt.Sprint("owner", g)
			for range 100 {
				v4, v6, err := al.Allocate(owner, nil)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if live[v4] != "" || live[v6] != "" {
					t.Errorf("%s: %s or %s belongs to %q %q", owner, v4, v6, live[v4], live[v6])
				}
				live[v4], live[v6] = owner, owner
				mu.Unlock()

				mu.Lock()
				delete(live, v4)
				delete(live, v6)
				mu.Unlock()
				al.Release(owner)
			}
		})
	}
	wg.Wait()
	for _, u := range al.Dump() {
		if u.InUse != 0 || len(u.Owners) != 0 {
			t.Errorf("%s: %d left", u.Prefix, u.InUse)
		}
	}
}

// TestBigPrefix walks a /8 and a /32 far enough to show that nothing is kept
// for addresses that are free.
func TestBigPrefix(t *testing.T) {
	al := mustNew(t, "10.0.0.0/8", "fd00::/32")
	allocs := testing.AllocsPerRun(10000, func() {
		if _, _, err := al.Allocate("a", nil); err != nil {
			t.Fatal(err)
		}
		al.Release("a")
	})
	if allocs > 10 {
		t.Errorf("%v allocations for one pod", allocs)
	}
	if u := al.Dump()[1]; u.Capacity != 1<<64-1 || u.InUse != 0 {
		t.Errorf("%+v", u)
	}
}

// Addresses that another network has given are left out, and free when they are no longer in use there.
func TestElsewhere(t *testing.T) {
	al := mustNew(t, "10.0.0.0/29")
	taken := map[netip.Addr]bool{netip.MustParseAddr("10.0.0.2"): true, netip.MustParseAddr("10.0.0.4"): true}
	elsewhere := func(a netip.Addr) bool { return taken[a] }
	for _, want := range []string{"10.0.0.3", "10.0.0.5", "10.0.0.6"} {
		if v4, _, err := al.Allocate(want, elsewhere); err != nil || v4 != netip.MustParseAddr(want) {
			t.Fatalf("got %s, %v, want %s", v4, err, want)
		}
	}
	_, _, err := al.Allocate("more", elsewhere)
	if !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(),
		"all 5 addresses in use, 2 of them by pods of another network") {
		t.Fatalf("full: %v", err)
	}
	delete(taken, netip.MustParseAddr("10.0.0.2"))
	if v4, _, err := al.Allocate("more", elsewhere); err != nil || v4 != netip.MustParseAddr("10.0.0.2") {
		t.Fatalf("free again: %s, %v", v4, err)
	}
}
