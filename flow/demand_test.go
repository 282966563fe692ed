package flow_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/flow"
	"myelin/test/packet"
)

// What rows of the test have beside flags.
const (
	masqueraded = uint8(bpf.DatapathFlowFlagFLOW_NAT)
	replied     = uint8(bpf.DatapathFlowFlagFLOW_REPLIED)
	closing     = uint8(bpf.DatapathFlowFlagFLOW_CLOSING)
	podFirst    = uint8(bpf.DatapathFlowFlagFLOW_POD_FIN)
)

// put writes a row whose last packet was some seconds ago. client and server are TCP flags of the side that began and
// of the other one.
func put(t *testing.T, d *bpf.Datapath, clock flow.Clock, port uint16, proto, flags, client, server uint8,
	idle uint64) (flow.Key, flow.Row) {
	t.Helper()
	key, row := nat(packet.IPv4)
	key.Port[0], key.Proto = bpf.Port(port), proto
	row.Seen, row.Flags = uint32(clock.Ticks-idle*uint64(clock.Hz)), flags
	row.Side[row.Origin&1].TcpFlags, row.Side[1-row.Origin&1].TcpFlags = client, server
	if err := d.Flows.Put(key, row); err != nil {
		t.Fatal(err)
	}
	return key, row
}

// TestDemand: flows whose packets prove that both ends exist count, also closed ones while the server may be in
// TIME-WAIT, and no others.
func TestDemand(t *testing.T) {
	const hz, tcp, udp, ack, fin, rst = 1000, 6, 17, flow.ACK, flow.ACK | flow.FIN, flow.RST
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1, FlowAlways: 1, Hz: hz}, map[string]uint32{"flows": 1024})
	clock, err := flow.ReadClock(hz)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for i, c := range []struct {
		proto, flags, client, server uint8
		idle                         uint64
		want                         int
	}{
		{tcp, 0, 0, ack, 0, 0},       // SYN
		{tcp, replied, 0, ack, 0, 0}, // SYN-ACK to a forged source
		{tcp, replied, ack, ack, 0, 1},
		{udp, 0, 0, 0, 0, 0},
		{udp, replied, 0, 0, 0, 1},
		// Closed: the server first, then the pod first.
		{tcp, masqueraded | replied | closing, fin, fin, 50, 2},
		{tcp, masqueraded | replied | closing | podFirst, fin, fin, 0, 0},
		{tcp, replied | closing, fin, fin, 0, 0}, // not masqueraded
		// A forged source that sends an ACK, and even a FIN: the server refuses it.
		{tcp, masqueraded | replied | closing, ack, ack | rst, 0, 0},
		{tcp, masqueraded | replied | closing, fin, ack | rst, 0, 0},
		{tcp, masqueraded | replied | closing, fin | rst, ack, 0, 0},
		// Both ends have closed it, and one has reset it, so that there is no TIME-WAIT.
		{tcp, masqueraded | replied | closing, fin | rst, fin, 0, 0},
	} {
		key, row := put(t, d, clock, uint16(i+1), c.proto, c.flags, c.client, c.server, c.idle)
		if got := flow.Demand(clock, &key, &row); got != c.want {
			t.Errorf("%d: %+v: %d", i, c, got)
		}
		sum += c.want
	}
	c := flow.NewCollector(d, slog.Default())
	if err := c.Pass(context.Background(), hz); err != nil {
		t.Fatal(err)
	}
	if u, err := c.Room(); err != nil || u.Demand != sum {
		t.Errorf("usage is %+v, %v, want a demand of %d", u, err, sum)
	}
	key, row := put(t, d, clock, 99, tcp, masqueraded|replied|closing, fin, fin, 61)
	if got := flow.Demand(clock, &key, &row); got != 0 {
		t.Errorf("a flow that is over: %d", got)
	}
}

// TestDemandOfEvicted: closed flows whose eviction does harm count after it, and others do not.
func TestDemandOfEvicted(t *testing.T) {
	const hz, tcp, closed, first, half = 1000, 6, flow.ACK | flow.FIN, 100, 600
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1, FlowAlways: 1, Hz: hz}, map[string]uint32{"flows": 1024})
	clock, err := flow.ReadClock(hz)
	if err != nil {
		t.Fatal(err)
	}
	for i := range half {
		flags := masqueraded | replied | closing
		if i >= first {
			flags |= podFirst
		}
		put(t, d, clock, uint16(i+1), tcp, flags, closed, closed, 5)
	}
	c := flow.NewCollector(d, slog.Default())
	for pass, entries := range []int{half, 0, 0} { // the second one evicts
		if err := c.Pass(context.Background(), hz); err != nil {
			t.Fatal(err)
		}
		if u, err := c.Room(); err != nil || u.Entries != entries || u.Demand != 2*first {
			t.Errorf("pass %d: usage is %+v, %v, want %d entries and a demand of %d", pass, u, err, entries, 2*first)
		}
	}
}

// TestDemandSoon: a table that fills up has a demand beyond its entries after the second pass, for as long as a reload
// takes.
func TestDemandSoon(t *testing.T) {
	for reload, times := range map[time.Duration]int{0: 1, 2 * time.Second: 2, time.Hour: 5} {
		t.Run(reload.String(), func(t *testing.T) { testDemandSoon(t, reload, times) })
	}
}

// testDemandSoon has the table fill up. Demand includes what comes in lead, a number of seconds.
func testDemandSoon(t *testing.T, reload time.Duration, lead int) {
	const hz, tcp, closed, each = 1000, 6, flow.ACK | flow.FIN, 50
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1, FlowAlways: 1, Hz: hz}, map[string]uint32{"flows": 1024})
	c := flow.NewCollector(d, slog.Default())
	c.Expect(reload)
	began := time.Now()
	for pass := range 2 {
		clock, err := flow.ReadClock(hz)
		if err != nil {
			t.Fatal(err)
		}
		for i := range each {
			put(t, d, clock, uint16(pass*each+i+1), tcp, masqueraded|replied|closing, closed, closed, 0)
		}
		if err := c.Pass(context.Background(), hz); err != nil {
			t.Fatal(err)
		}
		least, most := 2*each, 2*each // what was there before is not growth
		if pass == 1 {
			// In a quarter of a second, or as long as both passes took.
			fastest, slowest := flow.LookInterval, max(flow.LookInterval, time.Since(began))
			rate := func(in time.Duration) int { return int(time.Duration(2*each*lead) * time.Second / in) }
			least, most = 4*each+rate(slowest)-1, 4*each+rate(fastest)+1
		}
		if u, err := c.Room(); err != nil || u.Demand < least || u.Demand > most {
			t.Errorf("pass %d: usage is %+v, %v, want a demand of %d to %d", pass, u, err, least, most)
		}
	}
}

// TestLend: the endpoint that needs most of a table may have up to 7/8 of it, another one still half of what is left,
// until the next pass.
func TestLend(t *testing.T) {
	const hz, tcp, size, needy, other = 1000, 6, 1024, 2, 3
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1, FlowAlways: 1, Hz: hz}, map[string]uint32{"flows": size})
	clock, err := flow.ReadClock(hz)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 400 {
		key, row := put(t, d, clock, uint16(i+1), tcp, replied, flow.ACK, flow.ACK, 0)
		row.Slot = needy
		if i >= 100 {
			row.Slot, row.Flags = other, 0 // a flood
		}
		if err := d.Flows.Put(key, row); err != nil {
			t.Fatal(err)
		}
	}
	c := flow.NewCollector(d, slog.Default())
	if err := c.Pass(context.Background(), hz); err != nil {
		t.Fatal(err)
	}
	counts := func() (own, others int32) {
		t.Helper()
		if err := d.Shares.Lookup(uint32(needy), &own); err != nil {
			t.Fatal(err)
		}
		if err := d.Shares.Lookup(uint32(other), &others); err != nil {
			t.Fatal(err)
		}
		return own, others
	}
	if err := c.Lend(); err != nil {
		t.Fatal(err)
	}
	if own, others := counts(); own != 100-size*3/4 || others != 300 {
		t.Errorf("counts are %d and %d", own, others)
	}
	if u, err := c.Usage(); err != nil || u.Entries != 400 || u.Slot != other || u.Most != 300 {
		t.Errorf("usage is %+v, %v", u, err)
	}
	if err := c.Pass(context.Background(), hz); err != nil {
		t.Fatal(err)
	}
	if own, others := counts(); own != 100 || others != 300 {
		t.Errorf("counts are %d and %d after the next pass", own, others)
	}
}
