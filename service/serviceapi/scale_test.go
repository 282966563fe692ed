package serviceapi

import (
	"net/netip"
	"testing"
	"time"

	"myelin/service/serviceapi/probe"
)

// TestManyFail: the results of many backends that arrive together are written together. None of them has a listener.
func TestManyFail(t *testing.T) {
	backendHosts(t)
	w := start(t, t.TempDir())
	s := svc("big", "192.0.2.10:80", "")
	for port := range 5000 {
		a := netip.AddrPortFrom(netip.MustParseAddr("10.9.0.1"), uint16(port+1))
		s.Backends = append(s.Backends, Backend{Address: a, Weight: 1})
	}
	check := probe.Check{Kind: probe.TCP, Interval: time.Hour}.WithDefaults()
	s.Check = &check
	begin := time.Now()
	w.upsert(t, s)
	for {
		failing := 0
		for p := range w.Probes.All(w.db.ReadTxn()) {
			if p.Health == Failing {
				failing++
			}
		}
		if failing == len(s.Backends) {
			break
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("%d of %d are known to fail", failing, len(s.Backends))
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("%d backends are known to fail after %s", len(s.Backends), time.Since(begin))
}
