package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/cilium/statedb"

	"myelin/bench/results"
	"myelin/bpf"
	"myelin/service"
)

// millionSize is how many flows go through one node. Flows are a power of two.
type millionSize struct {
	flows, clients, backends int
	entries                  uint32 // room for NAT entries
	rounds                   int    // of the cost
}

// Million measures 1,048,576 TCP flows to 256 backends while one backend is added, one is removed and one is drained.
// So many backends have so many NAT ports that none of the flows runs out of candidates.
func Million(ctx context.Context, opts Options) ([]results.Result, error) {
	return millions(ctx, opts, millionSize{flows: 1 << 20, clients: 1 << 6, backends: 1 << 8, entries: 5 << 18,
		rounds: 5})
}

func millions(ctx context.Context, opts Options, size millionSize) (list []results.Result, err error) {
	for _, family := range []Family{IPv4, IPv6} {
		var all millionResult
		for _, mode := range loadModes() {
			r, err := millionOf(ctx, opts.Log, mode, family, size)
			if err != nil {
				return nil, fmt.Errorf("%d flows, %s, IPv%d: %w", size.flows, mode, family, err)
			}
			all.excess, all.broken = max(all.excess, r.excess), all.broken+r.broken
			all.bytes, all.times = max(all.bytes, r.bytes), max(all.times, r.times)
		}
		suffix := family.suffix()
		list = append(list,
			results.Result{Name: "xdp/million_excess_moved" + suffix, Value: all.excess, Unit: "%"},
			results.Result{Name: "xdp/million_broken" + suffix, Value: float64(all.broken), Unit: "flows"},
			results.Result{Name: "xdp/million_maps_mb" + suffix, Value: float64(all.bytes) / (1 << 20), Unit: "MB"},
			results.Result{Name: "xdp/million_bytes_per_flow" + suffix, Unit: "bytes",
				Value: float64(all.bytes) / float64(size.flows)},
			results.Result{Name: fmt.Sprintf("xdp/x_hit_%d%s", size.flows, suffix), Value: all.times})
	}
	return list, nil
}

// millionResult is the result of a node.
type millionResult struct {
	excess float64 // flows that moved in excess of those that had to, in percent, after the worst of the changes
	broken int     // flows of healthy backends
	bytes  uint64  // of all maps
	times  float64 // cost of a packet, by that of one of 16 flows; with SNAT
}

// million is a node with many flows.
type million struct {
	front    *front
	by       *mine
	rig      *rig
	log      *slog.Logger
	backends []netip.Addr
	clients  map[bpf.DatapathAddr]int
	ended    map[uint32]bool // backends whose flows have ended
	result   millionResult
}

// flowState is the state of a flow; its backend is 0 without a NAT entry.
type flowState struct {
	backend          uint32
	port             uint16
	created, packets uint64
}

func millionOf(ctx context.Context, log *slog.Logger, mode loadMode, family Family,
	size millionSize) (result millionResult, err error) {
	f, by := newLoadFront("million", mode, family, size.backends, size.entries)
	m := &million{front: f, by: by, log: log.With("mode", mode, "family", family),
		clients: map[bpf.DatapathAddr]int{}, ended: map[uint32]bool{}}
	defer func() { err = errors.Join(err, m.close(context.WithoutCancel(ctx))) }()
	for i, a := range addresses(family.client(), size.clients) {
		m.clients[bpf.Addr(a)] = i
	}
	if err := f.stand(ctx); err != nil {
		return result, err
	}
	m.backends = f.backends()
	if err := m.begin(flows{count: size.flows, clients: size.clients, first: floodPort}); err != nil {
		return result, fmt.Errorf("begin flows: %w", err)
	}
	if mode == loadSNAT {
		if err := m.cost(size.rounds); err != nil {
			return result, fmt.Errorf("measure the cost of a packet: %w", err)
		}
	}
	for _, change := range changes() {
		if err := m.change(ctx, change); err != nil {
			return result, fmt.Errorf("%s a backend: %w", change.name, err)
		}
	}
	return m.result, nil
}

// begin begins all flows and reads how much memory that takes.
func (m *million) begin(all flows) (err error) {
	if m.rig, err = newRig(m.front, m.by, all, "S", nil); err != nil {
		return err
	}
	start := time.Now()
	// Half-open flows yield their NAT ports to others that find no free one: they begin again.
	const attempts = 3
	missing := all.count
	for i := 0; i < attempts && missing > 0; i++ {
		if err := m.connect(all.count); err != nil {
			return err
		}
		if missing, err = m.missing(); err != nil {
			return err
		}
	}
	if missing > 0 {
		return fmt.Errorf("%d flows have no NAT entry", missing)
	}
	if err := m.measureMaps(); err != nil {
		return err
	}
	m.log.Info("begun", "flows", all.count, "took", time.Since(start), "MB", m.result.bytes>>20)
	return m.rig.rewrite("A")
}

// connect plays all SYNs. from_wire gets what XDP passes: the first ones, and those without a free candidate port.
func (m *million) connect(count int) error {
	for at := 0; at < count; at += chunk {
		p, err := m.rig.play(at, min(chunk, count-at))
		if err == nil && p.passed() > 0 && !m.by.ipip {
			err = m.rig.through(at, min(chunk, count-at))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// missing is the number of flows without a NAT entry.
func (m *million) missing() (n int, err error) {
	states, err := m.states()
	for i := range states {
		if states[i].backend == 0 {
			n++
		}
	}
	return n, err
}

// measureMaps reads how much memory all maps take.
func (m *million) measureMaps() error {
	for name, one := range m.by.balancer.datapath.MapsByName() {
		info, err := one.Info()
		if err != nil {
			return fmt.Errorf("read about map %s: %w", name, err)
		}
		bytes, _ := info.Memlock()
		m.result.bytes += bytes
	}
	return nil
}

// cost compares packets of all flows with those of a few.
func (m *million) cost(rounds int) error {
	n := m.rig.flows
	few, err := newRig(m.front, m.by, flows{count: frontFlows, first: n.first}, "A", nil)
	if err != nil {
		return err
	}
	var ofFew, ofAll []float64
	for range rounds {
		one, err1 := few.cost(max(chunk, n.count/4))
		all, err2 := m.rig.cost(n.count)
		if err := errors.Join(err1, err2); err != nil {
			return errors.Join(err, few.close())
		}
		ofFew, ofAll = append(ofFew, one), append(ofAll, all)
	}
	m.log.Info("cost", "ns", ofAll, "few", ofFew)
	m.result.times, err = medianRatio(ofAll, ofFew)
	return errors.Join(err, few.close())
}

// states returns the states of all flows.
func (m *million) states() ([]flowState, error) {
	n := m.rig.flows
	each := n.count / n.clients
	list := make([]flowState, n.count)
	var failed error
	err := bpf.Each(m.by.balancer.datapath.NatEntries, func(k *bpf.DatapathNatTuple, e *bpf.DatapathNatEntry) bool {
		client, known := m.clients[k.Src]
		i := int(bpf.Port(k.Sport)) - n.first
		if !known || i < 0 || i >= each {
			failed = fmt.Errorf("there is a NAT entry of %s:%d", k.Src.Netip(), bpf.Port(k.Sport))
			return false
		}
		list[client*each+i] = flowState{e.BackendId, e.NatPort, e.CreatedAt(), e.Packets[0]}
		return true
	})
	return list, errors.Join(err, failed)
}

// change is one of backends. apply returns the ID of the backend that gets no new flows any more, and that of the new
// one.
type change struct {
	name  string
	apply func(context.Context, *million) (gone, added uint32, err error)
	ends  bool // flows of the backend that is gone, too
}

func changes() []change {
	const removed, drained = 3, 5
	return []change{
		{name: "add", apply: func(ctx context.Context, m *million) (uint32, uint32, error) {
			last := m.backends[len(m.backends)-1].Next()
			m.backends = append(m.backends, last)
			err := m.write(ctx)
			return 0, m.id(last), err
		}},
		{name: "remove", ends: true, apply: func(ctx context.Context, m *million) (uint32, uint32, error) {
			id := m.id(m.backends[removed])
			m.backends = append(m.backends[:removed:removed], m.backends[removed+1:]...)
			return id, 0, m.write(ctx)
		}},
		{name: "drain", apply: func(ctx context.Context, m *million) (uint32, uint32, error) {
			return m.id(m.backends[drained]), 0, m.drain(ctx, m.backends[drained])
		}},
	}
}

// write makes the Service's backends those of m.
func (m *million) write(ctx context.Context) error {
	all, ports := m.front.objects(m.backends)
	services, slices, err := all.rows()
	if err != nil {
		return err
	}
	b := m.by.balancer
	if err := b.put(services, slices); err != nil {
		return err
	}
	return b.changed(ctx, func(txn statedb.ReadTxn) bool {
		return b.services.Desired.Backends.NumObjects(txn) == ports*len(m.backends)
	})
}

// drain has a backend get no more flows.
func (m *million) drain(ctx context.Context, a netip.Addr) error {
	b := m.by.balancer
	if err := b.services.SetState(service.L4(a, frontTCP, service.TCP), service.Maintenance); err != nil {
		return err
	}
	return b.changed(ctx, func(txn statedb.ReadTxn) bool {
		row := m.row(txn, a)
		return row != nil && row.State == service.Maintenance
	})
}

// id is a backend's number, 0 if there is none.
func (m *million) id(a netip.Addr) uint32 {
	if row := m.row(m.by.balancer.db.ReadTxn(), a); row != nil {
		return row.ID
	}
	return 0
}

func (m *million) row(txn statedb.ReadTxn, a netip.Addr) *service.Backend {
	for row := range m.by.balancer.services.Desired.Backends.All(txn) {
		if row.Address.Addr() == a && row.Protocol == service.TCP {
			return row
		}
	}
	return nil
}

// change applies a change and sends a packet of each flow: flows of healthy backends must keep their backend. With DSR
// it also sends them without NAT entries, as if they arrived at another node with the same Maglev table.
func (m *million) change(ctx context.Context, c change) error {
	before, err := m.states()
	if err != nil {
		return err
	}
	gone, added, err := c.apply(ctx, m)
	if err != nil {
		return err
	}
	if c.ends {
		m.ended[gone] = true
		m.rig.single = true // some packets become resets
	}
	after, err := m.replay()
	if err != nil {
		return err
	}
	broken := 0
	for i := range before {
		if !m.ended[before[i].backend] && !before[i].continues(&after[i]) {
			broken++
		}
	}
	m.result.broken += broken
	m.log.Info("changed", "what", c.name, "gone", gone, "added", added, "broken", broken)
	if !m.by.ipip {
		return nil
	}
	if err := forget(m.by.balancer.datapath); err != nil {
		return err
	}
	again, err := m.replay()
	if err != nil {
		return err
	}
	return m.compare(before, again, gone, added)
}

// continues reports whether a flow is still the same, and had another packet.
func (s *flowState) continues(after *flowState) bool {
	return s.backend == after.backend && s.port == after.port && s.created == after.created && s.packets < after.packets
}

// replay plays a packet of each flow.
func (m *million) replay() ([]flowState, error) {
	if _, err := m.rig.play(0, m.rig.flows.count); err != nil {
		return nil, err
	}
	return m.states()
}

// compare notes the share of flows that have another backend, neither the new one nor instead of the one that is gone.
func (m *million) compare(before, after []flowState, gone, added uint32) error {
	excess, had, has := 0, 0, 0
	for i := range before {
		was, is := before[i].backend, after[i].backend
		switch {
		case is == 0 || is == gone:
			return fmt.Errorf("flow %d, of backend %d, has backend %d without NAT entries", i, was, is)
		case was == gone:
			had++
		case is == added:
			has++
		case was != is:
			excess++
		}
	}
	if had+has == 0 {
		return errors.New("no flow had the backend that is gone, or has the new one")
	}
	m.result.excess = max(m.result.excess, percent(excess, len(before)))
	m.log.Info("hashed again", "had the one that is gone", had, "have the new one", has, "moved in excess", excess)
	return nil
}

func (m *million) close(ctx context.Context) error {
	var err error
	if m.rig != nil {
		err = m.rig.close()
	}
	return errors.Join(err, m.front.down(ctx))
}
