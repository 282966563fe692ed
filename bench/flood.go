package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/ebpf"

	"myelin/bench/results"
	"myelin/bpf"
	"myelin/flow"
	"myelin/service/flood"
)

// floodSize is how large a flood is.
type floodSize struct {
	known   int // flows in use, a power of two
	entries int // room for NAT entries
	syns    int // of other flows, a power of two
}

// Where known flows, those of floods, and those that renew the forwarding cache begin: their ports are distinct.
const (
	knownPort    = 40000
	floodPort    = 10000
	floodClients = 256
	renewPort    = 30000
	renewFlows   = 256
)

// floodGap is how many SYNs, in multiples of the room for NAT entries, come between two packets of a known flow.
const floodGap = 8

// Floods measures what a flood of SYNs, of 51 times as many flows as there is room for, leaves of TCP connections in
// use: the packets that XDP forwards, and the connections that keep their entries, whichever is less, in percent.
func Floods(ctx context.Context, opts Options) ([]results.Result, error) {
	return floods(ctx, opts, floodSize{known: 1 << 13, entries: 10 << 10, syns: 1 << 19})
}

func floods(ctx context.Context, opts Options, size floodSize) (list []results.Result, err error) {
	for _, family := range []Family{IPv4, IPv6} {
		least := 100.0
		for _, mode := range loadModes() {
			kept, err := floodOf(ctx, opts.Log, mode, family, size)
			if err != nil {
				return nil, fmt.Errorf("flood, %s, IPv%d: %w", mode, family, err)
			}
			least = min(least, kept)
		}
		list = append(list, results.Result{Name: "xdp/flood_kept" + family.suffix(), Value: least, Unit: "%"})
	}
	return list, nil
}

// flooded is a node in a flood.
type flooded struct {
	front        *front
	by           *mine
	known, syns  *rig
	renewing     *rig // whose flows may be evicted
	shares       *flow.Shares
	adjusted     time.Time
	before       map[bpf.DatapathNatTuple]bpf.DatapathNatEntry
	during, sent played // of known flows, of the flood
}

func floodOf(ctx context.Context, log *slog.Logger, mode loadMode, family Family,
	size floodSize) (kept float64, err error) {
	f, by := newLoadFront("flood", mode, family, manyBackends, uint32(size.entries))
	n := &flooded{front: f, by: by}
	defer func() { err = errors.Join(err, n.close(context.WithoutCancel(ctx))) }()
	if err := f.stand(ctx); err != nil {
		return 0, err
	}
	if err := n.establish(size.known); err != nil {
		return 0, fmt.Errorf("establish connections: %w", err)
	}
	alone, err := n.known.play(0, max(size.known, chunk))
	if err != nil {
		return 0, err
	}
	if alone.forwarded != alone.packets {
		return 0, fmt.Errorf("before the flood, XDP forwards %d of %d packets", alone.forwarded, alone.packets)
	}
	if err := n.flood(size.syns); err != nil {
		return 0, err
	}
	same, others, err := n.survivors()
	if err != nil {
		return 0, err
	}
	cpus, err := cpusOf(by.balancer.datapath)
	if err != nil {
		return 0, err
	}
	evicted, stateless := uint64(0), uint64(0)
	for i := range cpus {
		evicted, stateless = evicted+cpus[i].NatEvicted, stateless+cpus[i].Stateless
	}
	log.Info("flooded", "mode", mode, "family", family, "known", size.known, "unchanged", same,
		"packets", n.during.packets, "forwarded", n.during.forwarded,
		"ns before", perPacket(alone), "ns during", perPacket(n.during), "ns SYN", perPacket(n.sent),
		"SYNs", n.sent.packets, "entries", others, "evicted", evicted, "stateless", stateless,
		"refused", n.sent.packets-n.sent.forwarded)
	return min(percent(n.during.forwarded, n.during.packets), percent(same, size.known)), nil
}

func percent(part, whole int) float64 { return 100 * float64(part) / float64(whole) }

func perPacket(p played) float64 { return float64(p.took) / float64(p.packets) }

// establish begins known flows: SYN, with SNAT the backend's SYN-ACK, which DSR hides, and ACK.
func (n *flooded) establish(known int) error {
	var err error
	all := flows{count: renewFlows, clients: manyBackends, first: renewPort}
	if n.renewing, err = newRig(n.front, n.by, all, "S", nil); err != nil {
		return err
	}
	all.count, all.first = known, knownPort
	if n.known, err = newRig(n.front, n.by, all, "S", n.renewing); err != nil {
		return err
	}
	if err := n.known.through(0, known); err != nil {
		return err
	}
	if n.before, err = n.entries(); err != nil {
		return err
	}
	if len(n.before) != known {
		return fmt.Errorf("there are %d NAT entries of %d flows", len(n.before), known)
	}
	if !n.by.ipip {
		if err := n.reply(); err != nil {
			return err
		}
	}
	if err := n.known.rewrite("A"); err != nil {
		return err
	}
	if err := n.known.through(0, known); err != nil {
		return err
	}
	return n.checkEstablished()
}

// reply plays the SYN-ACKs of all known flows through from_wire.
func (n *flooded) reply() error {
	frames, err := n.front.replies(n.before)
	if err != nil {
		return err
	}
	rows, err := newFrames(len(frames), func(i int) []byte { return frames[i] })
	if err != nil {
		return err
	}
	p, err := n.known.player(bpf.FromWire, rows)
	if err != nil {
		return err
	}
	err = n.known.there(func() error {
		_, err := p.run(n.front.index[0], len(frames))
		return err
	})
	return errors.Join(err, p.close())
}

// checkEstablished fails unless the datapath has seen what each of the known flows needs to be in use.
func (n *flooded) checkEstablished() error {
	const ack = 0x10
	answered := uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_REPLIED | bpf.DatapathNatEntryFlagNAT_ENTRY_DSR)
	entries, err := n.entries()
	if err != nil {
		return err
	}
	for k, e := range entries {
		if e.Flags&answered == 0 || e.TcpFlags[0]&ack == 0 {
			return fmt.Errorf("the entry of %s:%d has flags %#x and TCP flags %#x", k.Src.Netip(), bpf.Port(k.Sport),
				e.Flags, e.TcpFlags)
		}
	}
	return nil
}

// flood plays SYNs, in turn with a packet of each known flow.
func (n *flooded) flood(syns int) (err error) {
	n.shares = flow.NewShares(n.by.balancer.datapath, bpf.DatapathShareKindSHARE_NAT_ENTRIES,
		int(n.by.natEntries))
	all := flows{count: syns, clients: min(floodClients, syns), first: floodPort}
	if n.syns, err = newRig(n.front, n.by, all, "S", n.renewing); err != nil {
		return err
	}
	each := floodGap * int(n.by.natEntries)
	for at := 0; at < syns; at += each {
		if err := n.adjust(); err != nil {
			return err
		}
		p, err := n.syns.play(at, min(each, syns-at))
		if err != nil {
			return err
		}
		n.sent.add(p)
		if p.passed() > 0 {
			if err := n.syns.through(at, min(each, syns-at)); err != nil {
				return err
			}
		}
		if err := n.exchange(); err != nil {
			return err
		}
	}
	return nil
}

// exchange plays a packet of each known flow.
func (n *flooded) exchange() error {
	p, err := n.known.play(0, n.known.flows.count)
	n.during.add(p)
	return err
}

// adjust sets the rate of new flows, once a second as the agent does.
func (n *flooded) adjust() error {
	if time.Since(n.adjusted) < time.Second {
		return nil
	}
	n.adjusted = time.Now()
	usage, err := n.shares.Usage()
	if err != nil {
		return err
	}
	rate := flood.RateOf(0, usage, ebpf.MustPossibleCPU())
	if err := n.by.balancer.datapath.NewFlowRate.Set(uint32(rate)); err != nil {
		return fmt.Errorf("set the rate of new flows: %w", err)
	}
	return nil
}

// entries are all NAT entries.
func (n *flooded) entries() (map[bpf.DatapathNatTuple]bpf.DatapathNatEntry, error) {
	all := map[bpf.DatapathNatTuple]bpf.DatapathNatEntry{}
	err := bpf.Each(n.by.balancer.datapath.NatEntries, func(k *bpf.DatapathNatTuple, e *bpf.DatapathNatEntry) bool {
		all[*k] = *e
		return true
	})
	return all, err
}

// survivors counts the known flows whose backend and NAT port are still the same, and flows of the flood with an entry.
func (n *flooded) survivors() (same, others int, err error) {
	entries, err := n.entries()
	if err != nil {
		return 0, 0, err
	}
	for k, e := range entries {
		was, known := n.before[k]
		switch {
		case !known:
			others++
		case was.Backend == e.Backend && was.NatPort == e.NatPort && was.Created == e.Created:
			same++
		}
	}
	return same, others, nil
}

func (n *flooded) close(ctx context.Context) error {
	var errs []error
	for _, r := range []*rig{n.syns, n.known, n.renewing} {
		if r != nil {
			errs = append(errs, r.close())
		}
	}
	return errors.Join(append(errs, n.front.down(ctx))...)
}
