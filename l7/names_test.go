package l7

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"myelin/l7/control"
	"myelin/l7/dns"
)

// TestNames: names are read when they are asked for, again after an answer, and at most as often as reading allows.
func TestNames(t *testing.T) {
	clock, reads, failure := time.Unix(1000, 0), 0, error(nil)
	first, second := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")
	rows := []dns.Row{
		{Slot: 2, Name: "b.example", Addresses: []dns.RowAddress{{Addr: first}, {Addr: second}}},
		{Slot: 2, Name: "a.example", Addresses: []dns.RowAddress{{Addr: first}}},
		{Slot: 3, Name: "c.example", Addresses: []dns.RowAddress{{Addr: first}}},
	}
	n := &names{now: func() time.Time { return clock }, fetch: func(context.Context) ([]dns.Row, error) {
		reads++
		clock = clock.Add(10 * time.Millisecond) // what reading takes
		return rows, failure
	}}
	step := func(what string, pass time.Duration, slot uint16, addr netip.Addr, wantReads int, want ...string) {
		t.Helper()
		clock = clock.Add(pass)
		if got := n.of(slot, addr); !slices.Equal(got, want) || reads != wantReads {
			t.Errorf("%s: names %v after %d readings, want %v after %d", what, got, reads, want, wantReads)
		}
	}
	step("two names", 0, 2, first, 1, "a.example", "b.example")
	step("one name", time.Second, 2, second, 1, "b.example")
	step("another pod", 0, 3, first, 1, "c.example")
	step("an unknown pod", 0, 4, first, 1)
	rows[2].Name = "d.example"
	n.seen([]control.Record{{DNS: &dns.Record{}}})
	step("a query", 0, 3, first, 1, "c.example")
	n.seen([]control.Record{{}, {DNS: &dns.Record{Addresses: []netip.Addr{first}}}})
	step("an answer", 0, 3, first, 2, "d.example")
	n.seen([]control.Record{{DNS: &dns.Record{Addresses: []netip.Addr{first}}}})
	rows = rows[:2]
	step("soon after", 50*10*time.Millisecond-1, 3, first, 2, "d.example")
	step("later", 1, 3, first, 3)
	rows = rows[:1]
	step("expiry is not seen at once", namesAge-1, 2, first, 3, "a.example", "b.example")
	step("but then", 1, 2, first, 4, "b.example")
	rows, failure = nil, errors.New("no proxy")
	step("without a proxy", namesAge, 2, first, 5, "b.example")
}
