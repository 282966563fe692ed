package proxy

import (
	"testing"
	"time"

	"myelin/bpf"
	"myelin/l7/dns"
)

// TestPendingSent: the time of a pending query is found from its low bits, also when they have wrapped, and when the
// clock of the CPU that noted it is ahead.
func TestPendingSent(t *testing.T) {
	t.Parallel()
	const unit = uint64(1) << pendingShift
	wrap := unit << 32
	for _, now := range []uint64{uint64(time.Hour), wrap + unit, 3*wrap + uint64(time.Minute)} {
		for _, age := range []time.Duration{-time.Millisecond / 2, 0, time.Microsecond, time.Millisecond,
			59 * time.Second} {
			sent := now - uint64(age)
			var row bpf.DatapathDnsEntry
			addPending(&row, dns.Pending{Port: 40000, ID: 7, Sent: sent})
			at := row.Pending[(40000^7)%len(row.Pending)]
			if got := pendingSent(at, now); uint16(at) != 7 || uint16(at>>16) != 40000 || got+unit <= sent ||
				got > sent+unit {
				t.Errorf("%s before %d: got %d, want %d", age, now, got, sent)
			}
		}
	}
}
