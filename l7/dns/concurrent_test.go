package dns

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"myelin/l7/dns/dnstest"
)

// TestConcurrent calls all methods at once. Each answer's address must be in the map when Packet returns.
func TestConcurrent(t *testing.T) {
	const workers, rounds, pods = 4, 300, 3
	w := newWorld(t, "*.io", "*.x.io")
	w.config.Endpoints = nil
	for slot := range pods {
		w.config.Endpoints = append(w.config.Endpoints, pod(slot+1, 1, 2))
	}
	w.configure()
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for i := range rounds {
				slot := i%pods + 1
				id, name := worker*rounds+i, fmt.Sprintf("n%d.io", i%50)
				addr := netip.AddrFrom4([4]byte{198, 51, byte(i % 7), byte(i % 5)})
				w.Packet(dnstest.UDP(client(slot), resolver(), message1(t, fmt.Sprintf("query %d | %s A", id, name))))
				m := message1(t, fmt.Sprintf("response %d | %s A | %s 1 A %s", id, name, name, addr))
				w.Packet(dnstest.UDP(resolver(), client(slot), m))
				if e, found := w.names.Get(uint16(slot), addr); !found || len(e.Selectors) != 1 {
					t.Errorf("%v of pod %d is not in the map: %v", addr, slot, e)
				}
			}
		})
	}
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			changed := w.config
			changed.DNS.MaxAddressesPerName = 100 + i
			if err := w.Configure(&changed); err != nil {
				t.Error(err)
			}
			w.Collect(func(uint16, netip.Addr) bool { return false })
			w.clock.advance(time.Nanosecond)
			var file bytes.Buffer
			if err := w.Save(&file); err != nil {
				t.Error(err)
			}
			w.Names()
			w.Counters()
		}
	})
	all.Wait()
	close(stop)
	others.Wait()
	if got := w.Counters().Unmatched; got != 0 {
		t.Errorf("%d answers are unmatched", got)
	}
}
