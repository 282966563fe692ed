package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"myelin/bpf"
)

// xdpContext and skbContext are what the kernel is told about a packet that isn't one: the beginning of xdp_md and of
// __sk_buff.
type xdpContext struct{ Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32 }

type skbContext struct {
	Before  [10]uint32
	Ifindex uint32
}

// live has the kernel make as many packets of a device, run the player on each, and send what it makes, burst at a
// time, at most 256. Kernel 5.18 or later.
func (p *player) live(index int, packets, burst uint32) error {
	size := p.frames.ValueSize()
	t := testRun{program: uint32(p.FD()), repeat: packets, flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES, batch: burst}
	return t.run(make([]byte, size), xdpContext{DataEnd: size, Ingress: uint32(index)})
}

// played is how many packets it has made so far.
func (p *player) played() (uint64, error) {
	row := make([]byte, p.frames.ValueSize())
	if err := p.frames.Lookup(p.frames.MaxEntries()-1, row); err != nil {
		return 0, fmt.Errorf("read number of frames: %w", err)
	}
	return binary.NativeEndian.Uint64(row), nil
}

// timed runs the player n times on a packet that a device brings, beginning with the first frame, and returns how long
// one run took, in whole ns: on average, or of single runs the median. The last run of a packet must return one of the
// verdicts.
func (p *player) timed(index, n int, verdicts ...int32) (time.Duration, error) {
	if err := p.first(); err != nil {
		return 0, err
	}
	if !p.single {
		return p.repeated(index, n, verdicts)
	}
	var took []float64
	for range n {
		one, err := p.repeated(index, 1, verdicts)
		if err != nil {
			return 0, err
		}
		took = append(took, float64(one))
	}
	return time.Duration(median(took)), nil
}

// repeated runs the player on one packet.
func (p *player) repeated(index, n int, verdicts []int32) (time.Duration, error) {
	t, err := p.run(index, n)
	if err == nil && !slices.Contains(verdicts, t.returned) {
		err = fmt.Errorf("the program returned %d, not %d", t.returned, verdicts)
	}
	return time.Duration(t.duration), err
}

// run is repeated with any verdict.
func (p *player) run(index, n int) (testRun, error) {
	frame := make([]byte, p.frames.ValueSize())
	if err := p.frames.Lookup(uint32(0), frame); err != nil { // the kernel takes the protocol from it
		return testRun{}, fmt.Errorf("read frame: %w", err)
	}
	var context any = skbContext{Ifindex: uint32(index)}
	if p.Type() == ebpf.XDP {
		context = xdpContext{DataEnd: uint32(len(frame)), Ingress: uint32(index)}
	}
	t := testRun{program: uint32(p.FD()), repeat: uint32(n)}
	return t, t.run(frame, context)
}

// forwarded is how many packets left by a wire so far, from the hook that is timed.
func (t *timing) forwarded() (n uint64, err error) {
	hook := bpf.DatapathHookHOOK_FROM_WIRE
	if t.hook == bpf.FromWireXDP {
		hook = bpf.DatapathHookHOOK_FROM_WIRE_XDP
	}
	cpus, err := cpusOf(t.datapath)
	for i := range cpus {
		n += cpus[i].Counters[hook][bpf.DatapathOutcomeFORWARD_WIRE].Packets
	}
	return n, err
}

// cpusOf is the state of all CPUs, with counters.
func cpusOf(d *bpf.Datapath) (cpus []bpf.DatapathCpu, err error) {
	if err := d.Cpus.Lookup(uint32(0), &cpus); err != nil {
		return nil, fmt.Errorf("read counters: %w", err)
	}
	return cpus, nil
}

// check compares how many packets left by the wire, of n, with how many should have: all, or none where the program has
// them go on; the bound counts none. For the first packets of a path, one or two go by the kernel's neighbours.
func (t *timing) check(had uint64, n int) error {
	now, err := t.forwarded()
	if err != nil {
		return err
	}
	left := int(now - had)
	if t.known {
		return t.countPassed(left, n)
	}
	if t.verdict == xdpPass && left > 0 || t.verdict != xdpPass && !t.bound && left < n*99/100 {
		return fmt.Errorf("%d of %d packets left by the wire", left, n)
	}
	if !t.begins {
		return nil
	}
	flows := n
	if t.begun != nil {
		flows += t.flows.count
	}
	rows, err := t.rows()
	if err == nil && len(rows) < flows*99/100 {
		err = fmt.Errorf("there are %d rows of %d flows", len(rows), flows)
	}
	return err
}

// countPassed computes the share of packets that went to tc, where all flows are known before: each has a row, and no
// packet began one.
func (t *timing) countPassed(left, n int) error {
	rows, err := t.rows()
	if err != nil {
		return err
	}
	if len(rows) != t.flows.count || left > n {
		return fmt.Errorf("there are %d rows of %d flows; %d of %d packets left by the wire", len(rows), t.flows.count,
			left, n)
	}
	t.passed = append(t.passed, 100*float64(n-left)/float64(n))
	return nil
}

// rows are the keys of flows that are translated.
func (t *timing) rows() ([]bpf.DatapathNatTuple, error) {
	return keys[bpf.DatapathNatEntry](t.datapath.NatEntries)
}

func keys[V any](m *ebpf.Map) (list []bpf.DatapathNatTuple, err error) {
	err = bpf.Each(m, func(k *bpf.DatapathNatTuple, _ *V) bool {
		list = append(list, *k)
		return true
	})
	return list, err
}

// forget takes all flows away.
func forget(d *bpf.Datapath) error {
	replies, err := keys[bpf.DatapathNatReply](d.NatReplies)
	if err != nil {
		return err
	}
	entries, err := keys[bpf.DatapathNatEntry](d.NatEntries)
	for _, k := range replies {
		err = errors.Join(err, d.NatReplies.Delete(k))
	}
	for _, k := range entries {
		err = errors.Join(err, d.NatEntries.Delete(k))
	}
	if err != nil {
		return fmt.Errorf("forget flows: %w", err)
	}
	return nil
}
