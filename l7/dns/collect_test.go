package dns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"myelin/l7/config"
)

func (w *world) collect(used ...string) {
	w.Collect(func(slot uint16, a netip.Addr) bool {
		for _, text := range used {
			if text == a.String() && slot == podSlot {
				return true
			}
		}
		return false
	})
}

// ttl is what remains of the first address of a name.
func (w *world) ttl(name string) time.Duration {
	for _, row := range w.Names() {
		if row.Name == name && row.Slot == podSlot {
			return row.Addresses[0].TTL
		}
	}
	return -1
}

func TestTTL(t *testing.T) {
	for _, test := range []struct {
		name, records string
		min           time.Duration
		want          time.Duration
	}{
		{"its own", "a.io 60 A 192.0.2.1", 0, time.Minute},
		{"zero", "a.io 0 A 192.0.2.1", 0, 0},
		{"minimum", "a.io 5 A 192.0.2.1", time.Hour, time.Hour},
		{"more than the minimum", "a.io 7200 A 192.0.2.1", time.Hour, 2 * time.Hour},
		{"of the CNAME", "a.io 10 CNAME b.io | b.io 60 A 192.0.2.1", 0, 10 * time.Second},
		{"of the last name", "a.io 60 CNAME b.io | b.io 7 A 192.0.2.1", 0, 7 * time.Second},
		{"too large", "a.io 2147483648 A 192.0.2.1", 0, 0},
	} {
		w := newWorld(t, "*")
		w.config.DNS.MinTTL = test.min
		w.configure()
		w.ask(podSlot, "a.io A", test.records)
		if got := w.ttl("a.io"); got != test.want {
			t.Errorf("%s: TTL %v, want %v", test.name, got, test.want)
		}
		w.want(podSlot, "192.0.2.1 1") // the first connection must not fail
		entry, _ := w.names.Get(podSlot, netip.MustParseAddr("192.0.2.1"))
		if want := w.clock.Monotonic() + uint64(test.want+Hold); entry.Expires != want {
			t.Errorf("%s: the entry expires at %d, want %d", test.name, entry.Expires, want)
		}
	}
}

func TestCollect(t *testing.T) {
	w := newWorld(t, "a.io", "b.io")
	w.config.DNS.IdleConnectionGracePeriod = 90 * time.Second
	w.configure()
	w.ask(podSlot, "a.io A", "a.io 30 A 192.0.2.1")
	w.ask(podSlot, "b.io A", "b.io 100 A 192.0.2.1 | b.io 100 A 192.0.2.2")
	w.collect()
	w.want(podSlot, "192.0.2.1 1,2; 192.0.2.2 2")
	w.clock.advance(time.Minute)
	w.collect()
	w.want(podSlot, "192.0.2.1 2; 192.0.2.2 2")
	w.clock.advance(time.Minute)
	w.collect("192.0.2.2")
	w.want(podSlot, "192.0.2.2 2")
	for range 10 { // longer than Hold
		w.clock.advance(time.Minute)
		w.collect("192.0.2.2")
		w.want(podSlot, "192.0.2.2 2")
	}
	w.clock.advance(time.Minute) // the grace period goes on
	w.collect()
	w.want(podSlot, "192.0.2.2 2")
	w.clock.advance(time.Minute)
	w.collect()
	w.want(podSlot, "")
	if rows := w.Names(); len(rows) != 0 || w.links.Load() != 0 || w.names.Len() != 0 {
		t.Errorf("names %v, %d links, %d entries are left", rows, w.links.Load(), w.names.Len())
	}
}

// TestRefresh has a name that is asked for again: its entry is extended before it expires, but not for each answer.
func TestRefresh(t *testing.T) {
	w := newWorld(t, "a.io")
	puts := 0
	w.start(&checking{memory: w.names, put: func() { puts++ }})
	for range 600 {
		w.ask(podSlot, "a.io A", "a.io 5 A 192.0.2.1")
		w.want(podSlot, "192.0.2.1 1")
		w.clock.advance(time.Second)
	}
	if puts < 5 || puts > 11 {
		t.Errorf("%d writes in ten minutes, want about one a minute", puts)
	}
	w.clock.advance(Hold)
	w.ask(podSlot, "a.io A", "a.io 5 A 192.0.2.1")
	w.want(podSlot, "192.0.2.1 1")
}

func TestAddressesPerName(t *testing.T) {
	w := newWorld(t, "a.io", "b.io")
	w.config.DNS.MaxAddressesPerName = 3
	w.configure()
	w.ask(podSlot, "b.io A", "b.io 10 A 192.0.2.1")
	w.ask(podSlot, "a.io A", "a.io 10 A 192.0.2.1 | a.io 30 A 192.0.2.2 | a.io 20 A 192.0.2.3")
	w.want(podSlot, "192.0.2.1 1,2; 192.0.2.2 1; 192.0.2.3 1")
	w.ask(podSlot, "a.io A", "a.io 40 A 192.0.2.4")
	w.want(podSlot, "192.0.2.1 2; 192.0.2.2 1; 192.0.2.3 1; 192.0.2.4 1")
	w.ask(podSlot, "a.io A", "a.io 40 A 192.0.2.5")
	w.want(podSlot, "192.0.2.1 2; 192.0.2.2 1; 192.0.2.4 1; 192.0.2.5 1")
	if got := w.Counters().Evicted; got != 2 {
		t.Errorf("%d evicted, want 2", got)
	}
}

// TestMaxSelectors has more selectors than an entry: those learnt last stay.
func TestMaxSelectors(t *testing.T) {
	var selectors []string
	for i := range MaxSelectors + 2 {
		selectors = append(selectors, fmt.Sprintf("n%d.io", i+1))
	}
	w := newWorld(t, selectors...)
	for _, name := range selectors {
		w.ask(podSlot, name+" A", name+" 60 A 192.0.2.1")
	}
	w.want(podSlot, "192.0.2.1 3,4,5,6,7,8,9,10")
	w.ask(podSlot, "n1.io A", "n1.io 60 A 192.0.2.1")
	w.want(podSlot, "192.0.2.1 1,4,5,6,7,8,9,10")
	if w.Counters().SelectorsDropped == 0 {
		t.Error("selectors that are left out are not counted")
	}
}

// TestUnused has a pod that learns many names that no policy selects: they are bounded, and do not displace others.
func TestUnused(t *testing.T) {
	w := newWorld(t, "a.io")
	w.ask(podSlot, "a.io A", "a.io 5 A 192.0.2.1")
	for i := range 2 * ReservedLinks {
		name := fmt.Sprintf("x%d.net", i)
		w.ask(podSlot, name+" A", fmt.Sprintf("%s 60 A 198.51.%d.%d", name, i/250, i%250))
	}
	w.want(podSlot, "192.0.2.1 1")
	if got := w.links.Load(); got > ReservedLinks+1 {
		t.Errorf("%d links, want at most %d", got, ReservedLinks+1)
	}
}

// TestConfigure changes what policies select while names are known.
func TestConfigure(t *testing.T) {
	w := newWorld(t, "a.io")
	w.ask(podSlot, "a.io A", "a.io 60 CNAME b.net | b.net 60 A 192.0.2.1")
	w.ask(podSlot, "c.io A", "c.io 60 A 192.0.2.2 | c.io 60 A 192.0.2.1")
	w.want(podSlot, "192.0.2.1 1")
	w.config.Selectors = append(w.config.Selectors,
		config.Selector{Number: 2, Names: patterns("*.net")}, config.Selector{Number: 3, Names: patterns("c.io")})
	w.config.Endpoints[0].Selectors = []uint32{3, 1, 2}
	w.configure()
	w.want(podSlot, "192.0.2.1 1,2,3; 192.0.2.2 3")
	w.config.Endpoints[0].Selectors = []uint32{2}
	w.configure()
	w.want(podSlot, "192.0.2.1 2")
	w.config.Endpoints = append(w.config.Endpoints, pod(podSlot+1, 3))
	w.configure()
	w.ask(podSlot+1, "c.io A", "c.io 60 A 192.0.2.2")
	w.want(podSlot+1, "192.0.2.2 3")
	w.config.Endpoints = w.config.Endpoints[1:]
	w.configure()
	w.want(podSlot, "")
	w.want(podSlot+1, "192.0.2.2 3")
	other := pod(podSlot+1, 3)
	other.Pod.Name = "other"
	w.config.Endpoints = []config.Endpoint{other}
	w.configure()
	if rows := w.Names(); len(rows) != 0 || w.names.Len() != 0 || w.links.Load() != 0 {
		t.Errorf("names %v, %d links and %d entries of pods that are gone", rows, w.links.Load(), w.names.Len())
	}
}

func TestConfigureRefuses(t *testing.T) {
	w := newWorld(t, "a.io")
	w.config.Selectors[0].Names = append(w.config.Selectors[0].Names, patterns("[*].io", "b.io")...)
	err := w.Configure(&w.config)
	if err == nil || !strings.Contains(err.Error(), `selector 1: compile name "[*].io"`) {
		t.Errorf("error %v", err)
	}
	w.ask(podSlot, "b.io A", "b.io 60 A 192.0.2.1")
	w.want(podSlot, "192.0.2.1 1")
}
