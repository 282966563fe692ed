package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"myelin/bench/results"
	"myelin/bpf"
)

// cost is one kind of packet that a program of ours is timed with.
type cost struct {
	hook  bpf.Hook
	name  string // of the result, without the family
	to    string // a name of front.names
	l4    string // with the client's port
	begin string // what each flow is begun with, through from_wire; empty: nothing
	flows int
	// verdict is what the program returns.
	verdict int32
	first   int  // the client's first port
	begins  bool // each packet begins a flow
}

func costs() []cost {
	udp, tcp := fmt.Sprintf("udp %%d > %d", frontUDP), fmt.Sprintf("tcp %%d > %d", frontTCP)
	const begun, unknown, many = 40000, 50000, 4096
	return []cost{
		{bpf.FromWireXDP, "xdp/ns_udp_hit", "lb", udp, udp, frontFlows, xdpTX, begun, false},
		{bpf.FromWireXDP, "xdp/ns_tcp_established", "lb", tcp + " A", tcp + " S", frontFlows, xdpTX, begun, false},
		// the way is the one of the other flows
		{bpf.FromWireXDP, "xdp/ns_tcp_syn", "lb", tcp + " S", udp, many, xdpTX, unknown, true},
		{bpf.FromWireXDP, "xdp/ns_tcp_unknown", "lb", tcp + " A", "", frontFlows, xdpPass, unknown, false},
		{bpf.FromWireXDP, "xdp/ns_miss", "unused", udp, "", frontFlows, xdpPass, unknown, false},
		{bpf.FromWire, "tc/ns_udp_hit", "lb", udp, udp, frontFlows, tcAway, begun, false},
		{bpf.FromWire, "tc/ns_tcp_established", "lb", tcp + " A", tcp + " S", frontFlows, tcAway, begun, false},
		{bpf.FromWire, "tc/ns_tcp_syn", "lb", tcp + " S", "", many, tcAway, unknown, true},
	}
}

// PerPacket measures how long our programs take for a packet, of both families, by BPF_PROG_TEST_RUN: a player makes
// each packet anew and goes on to our program, and the same player goes on to a program that does nothing but return
// the same; the difference is the median over rounds. Code and rows are in the processor's caches, so what it says is
// what the work costs, not what a packet among others costs. Kernel 6.6 or later.
func PerPacket(ctx context.Context, opts Options) ([]results.Result, error) {
	var list []results.Result
	for _, family := range []Family{IPv4, IPv6} {
		by := &mine{xdp: true}
		f := newFront("cost", family, by)
		measured, err := f.costs(ctx, opts, by)
		if err = errors.Join(err, f.down(context.WithoutCancel(ctx))); err != nil {
			return nil, err
		}
		list = append(list, measured...)
	}
	return list, nil
}

func (f *front) costs(ctx context.Context, opts Options, by *mine) (list []results.Result, err error) {
	if err := f.stand(ctx); err != nil {
		return nil, fmt.Errorf("set up %s: %w", f.name, err)
	}
	var all []*timing
	defer func() {
		for _, t := range all {
			err = errors.Join(err, t.close())
		}
	}()
	for _, c := range costs() {
		t, err := newTiming(f, by.balancer.datapath, c)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		all = append(all, t)
	}
	for round := range opts.Rounds {
		for _, t := range all {
			if err := t.round(); err != nil {
				return nil, fmt.Errorf("round %d of %s: %w", round+1, t.name, err)
			}
		}
	}
	for _, t := range all {
		opts.Log.Info("measured", "what", t.name, "family", f.family, "ns", t.took)
		list = append(list, results.Result{Name: fmt.Sprintf("%s_v%d", t.name, f.family), Value: median(t.took),
			Unit: "ns"})
	}
	return list, nil
}

// timing is a cost that is being measured.
type timing struct {
	cost
	front       *front
	datapath    *bpf.Datapath
	begun       *player // nil: flows need not be begun
	ours, idle  *player
	targets     []*ebpf.Map
	returning   *ebpf.Program
	translation int // rows that there are when all flows have begun
	took        []float64
}

func newTiming(f *front, d *bpf.Datapath, c cost) (t *timing, err error) {
	t = &timing{cost: c, front: f, datapath: d}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	spec, program, err := kindOf(d, c.hook)
	if err != nil {
		return t, err
	}
	returning := spec
	returning.Instructions = ending(c.verdict)
	if t.returning, err = ebpf.NewProgram(&returning); err != nil {
		return t, err
	}
	frames, err := f.write(c.flows, c.first, "client", c.to, c.l4)
	if err != nil {
		return t, err
	}
	if t.ours, err = t.player(spec, frames, program); err != nil {
		return t, err
	}
	if t.idle, err = t.player(spec, frames, t.returning); err != nil || c.begin == "" {
		return t, err
	}
	if frames, err = f.write(c.flows, c.first, "client", c.to, c.begin); err != nil {
		return t, err
	}
	spec, program, err = kindOf(d, bpf.FromWire)
	if err == nil {
		t.begun, err = t.player(spec, frames, program)
	}
	return t, err
}

// kindOf is a program of ours, and what one that goes on to it must be like.
func kindOf(d *bpf.Datapath, hook bpf.Hook) (ebpf.ProgramSpec, *ebpf.Program, error) {
	spec, err := bpf.LoadDatapath()
	if err != nil {
		return ebpf.ProgramSpec{}, nil, err
	}
	program := d.FromWire
	if hook == bpf.FromWireXDP {
		program = d.FromWireXDP
	}
	like := spec.Programs[string(hook)]
	return ebpf.ProgramSpec{Type: like.Type, AttachType: like.AttachType, License: "GPL"}, program, nil
}

// player plays frames, and goes on to a program.
func (t *timing) player(spec ebpf.ProgramSpec, frames [][]byte, program *ebpf.Program) (*player, error) {
	target, err := ebpf.NewMap(&ebpf.MapSpec{Name: "target", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4,
		MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("make map of programs: %w", err)
	}
	t.targets = append(t.targets, target)
	if err := target.Put(uint32(0), program); err != nil {
		return nil, fmt.Errorf("lead to program: %w", err)
	}
	return newPlayer(spec, frames, onTo(target))
}

// repeats is how often a program runs in a round: as often as there are flows where each is to begin, for which rows of
// the round before go.
func (t *timing) repeats() int {
	if t.begins {
		return t.flows
	}
	return max(1<<16, t.flows)
}

// round measures once, and looks whether the program did what is to be measured.
func (t *timing) round() error {
	var ours, idle time.Duration
	n := t.repeats()
	// The way is decided anew now, by the first packet that begins a flow: kept ways are a second old at most, and this
	// one must not become so.
	if err := (&bpf.Epochs{Map: t.datapath.Epochs}).Bump(0); err != nil {
		return err
	}
	had, err := t.forwarded()
	if err != nil {
		return err
	}
	err = undisturbed(t.front.prefix+"a", balancerProcessor, usually, func() (err error) {
		if t.begun != nil {
			if _, err := t.begun.timed(t.front.index[0], t.flows, tcAway); err != nil {
				return err
			}
		}
		if ours, err = t.ours.timed(t.front.index[0], n, t.verdict); err != nil {
			return err
		}
		idle, err = t.idle.timed(t.front.index[0], n, t.verdict)
		return err
	})
	if err != nil {
		return err
	}
	if err := t.check(had, n); err != nil {
		return err
	}
	if t.begins { // some of the ports that others' flows would have are taken
		if err := t.forget(); err != nil {
			return err
		}
	}
	t.took = append(t.took, float64(ours-idle))
	return nil
}

func (t *timing) close() error {
	var errs []error
	for _, p := range []*player{t.begun, t.ours, t.idle} {
		if p != nil {
			errs = append(errs, p.close())
		}
	}
	for _, m := range t.targets {
		errs = append(errs, m.Close())
	}
	return errors.Join(append(errs, t.returning.Close())...)
}
