package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"myelin/bpf"
)

// timing is a cost that is being measured.
type timing struct {
	cost
	front      *front
	datapath   *bpf.Datapath
	begun      *player // nil: flows need not be begun
	ours, idle *player
	targets    []*ebpf.Map
	returning  *ebpf.Program
	bounding   *ebpf.Program // of a cost with bound set
	took       []float64     // ns, by round
	passed     []float64     // of a cost with known set: share of packets that went to tc, in percent
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
	if c.bound {
		if t.bounding, err = newBound(d, f.family, c); err != nil {
			return t, err
		}
		program = t.bounding
	}
	frames, err := f.write(c.flows, c.to, c.l4)
	if err != nil {
		return t, err
	}
	if t.ours, err = t.player(spec, frames, program); err != nil {
		return t, err
	}
	if t.idle, err = t.player(spec, frames, t.returning); err != nil || c.begin == "" {
		return t, err
	}
	if c.begin != c.l4 {
		if frames, err = f.write(c.flows, c.to, c.begin); err != nil {
			return t, err
		}
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

// player plays frames, and goes on to a program. Where that one encapsulates, the player restores the packet's length
// in XDP; in tc each run has a packet of its own, because the kernel does not encapsulate an skb twice.
func (t *timing) player(spec ebpf.ProgramSpec, frames [][]byte, program *ebpf.Program) (*player, error) {
	target, err := newTarget(program)
	if err != nil {
		return nil, err
	}
	t.targets = append(t.targets, target)
	encapsulates := t.cost.front == frontIPIP
	if encapsulates && spec.Type == ebpf.XDP {
		spec.Instructions = restoring(len(frames[0]))
	}
	p, err := newPlayer(spec, frames, onTo(target))
	if err == nil {
		p.single = encapsulates && spec.Type != ebpf.XDP
	}
	return p, err
}

// newTarget makes the map that leads a player to a program.
func newTarget(program *ebpf.Program) (*ebpf.Map, error) {
	target, err := ebpf.NewMap(&ebpf.MapSpec{Name: "target", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4,
		MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("make map of programs: %w", err)
	}
	if err := target.Put(uint32(0), program); err != nil {
		return nil, errors.Join(fmt.Errorf("lead to program: %w", err), target.Close())
	}
	return target, nil
}

// repeats is how often a program runs in a round: as often as there are flows where each is to begin, for which rows of
// the round before go.
func (t *timing) repeats() int {
	const usual, single = 1 << 16, 1 << 11
	switch {
	case t.begins:
		return t.flows.count
	case t.ours.single:
		return single
	}
	return max(usual, t.flows.count)
}

// errExpired is returned by rounds that took longer than forwarding cache entries are valid, or whose run was restarted
// because of a signal, so that more packets were played.
var errExpired = errors.New("forwarding cache entries may have expired in the middle, or a run was restarted")

// round measures once, and again if other work kept the processor for so long that forwarding cache entries expired.
func (t *timing) round() (err error) {
	const attempts = 5
	for range attempts {
		if err = t.measure(); !errors.Is(err, errExpired) {
			return err
		}
	}
	return err
}

// measure times both programs, and checks that ours did what is to be measured.
func (t *timing) measure() error {
	n := t.repeats()
	had, err := t.forwarded()
	if err != nil {
		return err
	}
	ours, idle, expired, err := t.play(n)
	if err == nil && !expired {
		err = t.check(had, n)
	}
	if err == nil && t.begins { // some of the ports that others' flows would have are taken
		err = forget(t.datapath)
	}
	switch {
	case err != nil:
		return err
	case expired:
		return errExpired
	}
	t.took = append(t.took, float64(ours-idle))
	return nil
}

// play has flows begun, and times both programs. expired is set if the round is not valid, as errExpired says.
func (t *timing) play(n int) (ours, idle time.Duration, expired bool, err error) {
	const valid = 900 * time.Millisecond // a second less some ticks
	verdicts := []int32{t.verdict}
	if t.known {
		verdicts = append(verdicts, xdpPass)
	}
	err = undisturbed(t.front.prefix+"a", balancerProcessor, usually, func() (err error) {
		start := time.Now()
		// The path is decided again now, by the first packet through from_wire, and then valid for a second.
		if err := (&bpf.Epochs{Map: t.datapath.Epochs}).Bump(0); err != nil {
			return err
		}
		if t.begun != nil {
			if _, err := t.begun.timed(t.front.index[0], t.flows.count, tcAway); err != nil {
				return err
			}
		}
		ours, err = t.ours.timed(t.front.index[0], n, verdicts...)
		made, unread := t.ours.played()
		if unread != nil {
			return errors.Join(err, unread)
		}
		if expired = made != uint64(n); expired {
			return nil // whatever the last run of a restarted one returned
		}
		if err != nil {
			return err
		}
		expired = time.Since(start) > valid
		idle, err = t.idle.timed(t.front.index[0], n, t.verdict)
		return err
	})
	return ours, idle, expired, err
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
	return errors.Join(append(errs, t.bounding.Close(), t.returning.Close())...)
}
