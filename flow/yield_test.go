package flow

import (
	"math"
	"testing"
	"time"
)

// TestYieldAfter: unproven entries make room the sooner the faster entries come, those whose server may be in TIME-WAIT
// after a second, by what the last pass has counted, and proven ones never.
func TestYieldAfter(t *testing.T) {
	const size, slot, other, never = 16384, 5, 6, math.MaxInt64
	idle, most := Usage{Max: size}, Usage{Entries: size / 3, Max: size, Slot: slot, Most: size / 3}
	full := Usage{Entries: size * 2 / 3, Max: size}
	some := Usage{Entries: size / 6, Max: size}
	limited := Usage{Entries: size / 2, Max: size, Slot: slot, Most: size / 2}
	for _, row := range []struct {
		name             string
		counted, current Usage
		rate             float64 // entries per second; 0: the first pass, before any look
		slot             uint16
		e                Evidence
		want             time.Duration
	}{
		{"an idle table", idle, idle, 20_000, slot, Unproven, never},
		{"one endpoint has a third", idle, most, 1000, slot, Unproven, time.Second},
		{"by the endpoint's share", idle, most, 6000, slot, Unproven, 341333333},
		{"at least a quarter of a second", idle, most, 50_000, slot, Unproven, 250 * time.Millisecond},
		{"another endpoint", idle, most, 50_000, other, Unproven, never},
		{"all endpoints", idle, full, 50_000, other, Unproven, 250 * time.Millisecond},
		{"no more entries come", idle, limited, 0.1, slot, Unproven, 250 * time.Millisecond},
		{"the first pass", idle, some, 0, slot, Unproven, 250 * time.Millisecond},
		{"the first pass, TIME-WAIT", idle, some, 0, slot, Lingering, never},
		{"the first pass, an idle table", idle, idle, 0, slot, Unproven, never},
		{"a later pass", idle, some, 50_000, slot, Unproven, never},
		{"lingering", most, most, 50_000, slot, Lingering, time.Second},
		{"lingering since the last pass", idle, most, 50_000, slot, Lingering, never},
		{"proven", most, limited, 50_000, slot, Proven, never},
	} {
		s := Shares{size: size, counted: row.counted, current: row.current}
		if row.rate > 0 {
			s.looked = look{rate: row.rate, at: time.Now()}
		}
		if got := s.yieldAfter(row.slot, row.e); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

// TestWanted: a pass is due when a sixteenth of the table has come; if few entries of those before need room, not
// before the share of an endpoint will soon be used up.
func TestWanted(t *testing.T) {
	const size = 16384
	for _, row := range []struct {
		name                  string
		counted, most, demand int
		entries               int
		rate                  float64
		want                  bool
	}{
		{"nothing came", 0, 0, 0, 100, 400, false},
		{"many came", 0, 0, 0, 1100, 4400, true},
		{"many came that need room", 3000, 3000, 2000, 4100, 4400, true},
		{"many came, few need room", 3000, 3000, 100, 4100, 6000, false},
		{"the share is soon used up", 3000, 3000, 100, 5300, 6000, true},
		{"one is limited", 9000, 8000, 100, 9000, 0, true},
		{"almost full", 2000, 100, 100, 15000, 0, true},
	} {
		s := Shares{size: size, counted: Usage{Entries: row.counted, Max: size, Most: row.most},
			looked: look{rate: row.rate}}
		if got := s.wanted(Usage{Entries: row.entries, Max: size, Demand: row.demand}); got != row.want {
			t.Errorf("%s: %t, want %t", row.name, got, row.want)
		}
	}
}

// TestEvidence: what a flow's flags show.
func TestEvidence(t *testing.T) {
	const masqueraded, closing, replied, podFIN = 1, 2, 4, 16 // enum flow_flag
	for _, row := range []struct {
		name         string
		proto, flags uint8
		opener       uint8 // its TCP flags
		want         Evidence
	}{
		{"a SYN", tcp, 0, 2, Unproven},
		{"a masqueraded SYN", tcp, masqueraded, 2, Lingering},
		{"a SYN and its reply", tcp, replied, 2, Unproven},
		{"a handshake", tcp, replied, 2 | ACK, Proven},
		{"a closed connection", tcp, replied | closing, 2 | ACK | FIN, Unproven},
		{"closed by the server", tcp, replied | closing | masqueraded, 2 | ACK | FIN, Lingering},
		{"closed by the pod", tcp, replied | closing | masqueraded | podFIN, 2 | ACK | FIN, Unproven},
		{"a datagram", 17, 0, 0, Unproven},
		{"a datagram with a reply", 17, replied, 0, Proven},
	} {
		k, r := Key{Proto: row.proto}, Row{Flags: row.flags, Seen: 7}
		r.Side[0].TcpFlags = row.opener
		if got, seen := evidence(&k, &r); got != row.want || seen != 7 {
			t.Errorf("%s: %d, tick %d, want %d and 7", row.name, got, seen, row.want)
		}
	}
}
