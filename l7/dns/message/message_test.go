package message

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"myelin/l7/dns/dnstest"
)

// seeds are messages as text.
func seeds() []string {
	return []string{
		"response 1 | a.io A | a.io 60 A 192.0.2.1 | a.io 50 A 192.0.2.2",
		"response 1 tc | A.io AAAA | a.IO 60 AAAA 2001:db8::1",
		"response 1 | a.io A | a.io 60 CNAME b.net | b.net 30 CNAME c.org | c.org 90 A 192.0.2.1",
		"response 1 | a.io A | c.org 90 A 192.0.2.1 | b.net 30 CNAME c.org | a.io 60 CNAME b.net",
		"response 1 | a.io A | a.io 60 CNAME b.net | b.net 30 CNAME a.io",
		"response 1 | a.io A | x.io 60 A 192.0.2.1 | a.io 60 TXT t | additional | a.io 9 A 192.0.2.3",
		"response 1 | a.io A | a.io 2147483648 A 192.0.2.1 | raw 0001",
		"response 1 code 3 | . A",
	}
}

func text(t testing.TB, text string) []byte {
	t.Helper()
	m, err := dnstest.Message(text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestAnswer(t *testing.T) {
	var chain []string
	for i := range maxChain + 1 {
		chain = append(chain, fmt.Sprintf("n%d.io 60 CNAME n%d.io", i, i+1))
	}
	reverse := slices.Clone(chain[:maxChain-1])
	slices.Reverse(reverse)
	last := fmt.Sprintf("n%d.io 60 A 192.0.2.1", maxChain-1)
	for _, test := range []struct {
		name, text, want string
		ok               bool
	}{
		{"TTL", seeds()[2], "a.io. b.net. c.org. {192.0.2.1 30}", true},
		{"order", seeds()[3], "a.io. b.net. c.org. {192.0.2.1 30}", true},
		{"strange bytes", `response 1 | a"ä.io A | a"ä.io 60 A 192.0.2.1`, `a\034\195\164.io. {192.0.2.1 60}`, true},
		{"root", "response 1 | . A | . 60 A 192.0.2.1", ". {192.0.2.1 60}", true},
		{"no answer", "response 1 | a.io A", "a.io.", true},
		{"longest chain", "response 1 | n0.io A | " + strings.Join(reverse, " | ") + " | " + last,
			"n0.io. n1.io. n2.io. n3.io. n4.io. n5.io. n6.io. n7.io. n8.io. n9.io. n10.io. n11.io. n12.io. n13.io. " +
				"n14.io. n15.io. {192.0.2.1 60}", true},
		{"longer chain", "response 1 | n0.io A | " + strings.Join(chain, " | "), "n0.io.", false},
		{"long loop", seeds()[4] + strings.Repeat(" | a.io 60 CNAME b.net | b.net 30 CNAME a.io", 9), "a.io.", false},
	} {
		m := text(t, test.text)
		var q Question
		var a Answer
		if _, ok := q.Read(m, HeaderLen); !ok {
			t.Fatalf("%s: the question is not understood", test.name)
		}
		ok := a.Read(m, &q)
		var got []string
		for i := range a.Chain {
			got = append(got, a.Chain[i].String())
		}
		for _, address := range a.Addresses {
			got = append(got, fmt.Sprint(address))
		}
		if joined := strings.Join(got, " "); ok != test.ok || joined != test.want {
			t.Errorf("%s: got %q, %v, want %q, %v", test.name, joined, ok, test.want, test.ok)
		}
	}
}

// TestPointerLoop has a name that points to itself.
func TestPointerLoop(t *testing.T) {
	m := text(t, "response 1 | a.io A | a.io 60 A 192.0.2.1")
	var q Question
	end, _ := q.Read(m, HeaderLen)
	m[end], m[end+1] = 0xc0, byte(end)
	var a Answer
	if a.Read(m, &q) || len(a.Addresses) > 0 {
		t.Errorf("got %v", a.Addresses)
	}
}

// TestWork has the most records that a message can have, each of which is read several times.
func TestWork(t *testing.T) {
	m := text(t, "response 1 | a.io A")
	m[6], m[7] = 0xff, 0xff
	for len(m) < 1<<16-12 {
		m = append(m, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 0)
	}
	var q Question
	q.Read(m, HeaderLen)
	var a Answer
	if a.Read(m, &q) {
		t.Error("records without an address are understood")
	}
}

func FuzzMessage(f *testing.F) {
	for _, seed := range seeds() {
		f.Add(text(f, seed))
	}
	f.Fuzz(func(t *testing.T, m []byte) {
		var q Question
		var a Answer
		if _, ok := q.Read(m, HeaderLen); !ok || len(m) < HeaderLen || m[4] != 0 || m[5] != 1 {
			return
		}
		ok := a.Read(m, &q)
		walk, valid := dnstest.NewWalk(m, string(q.Name.Bytes())+".")
		if !valid {
			return
		}
		got := map[netip.Addr]uint32{}
		for _, address := range a.Addresses {
			got[address.Addr] = max(got[address.Addr], address.TTL)
			if _, found := walk.Reachable[address.Addr]; !found {
				t.Errorf("%v is learnt, and not said of %s", address, q.Name.String())
			}
		}
		if walk.Plain && (!ok || fmt.Sprint(got) != fmt.Sprint(walk.Reachable)) {
			t.Errorf("understood %v: got %v, want %v", ok, got, walk.Reachable)
		}
	})
}
