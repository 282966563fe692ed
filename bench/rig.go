package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"myelin/bpf"
	"myelin/test/packet"
)

// loadMode is how the node of a rig sends packets to backends.
type loadMode string

const (
	loadSNAT loadMode = "snat"
	loadDSR  loadMode = "dsr" // by IPIP, with Maglev
)

func loadModes() []loadMode { return []loadMode{loadSNAT, loadDSR} }

// newLoadFront returns a front with many backends and its implementation, which has room for so many NAT entries.
func newLoadFront(name string, mode loadMode, family Family, backends int, entries uint32) (*front, *mine) {
	by := &mine{xdp: true, ipip: mode == loadDSR, natEntries: entries, paths: 1 << 16}
	f := newFront(name+"-"+string(mode), family, by)
	f.backendCount, f.maglev = backends, mode == loadDSR
	return f, by
}

// rig plays the packets of many flows through a front's programs: through XDP, and through from_wire, as the kernel
// does with what XDP passes.
type rig struct {
	front     *front
	datapath  *bpf.Datapath
	flows     flows
	renewer   *rig // whose flows renew the forwarding cache; they go to all backends
	xdp, tc   *player
	targets   []*ebpf.Map // of xdp and tc
	program   *ebpf.Program
	returning *ebpf.Program
	single    bool // from_wire gets an skb for each packet, because it changes lengths
}

// chunk is how many frames are played within the time that forwarding cache entries are valid.
const chunk = 1 << 16

// renewing is how many flows go to all backends, for certain.
const renewing = 1 << 12

// newRig makes one of TCP flows, of which the frames have the flags. renewer is nil if they are known.
func newRig(f *front, m *mine, n flows, flags string, renewer *rig) (r *rig, err error) {
	r = &rig{front: f, datapath: m.balancer.datapath, flows: n, renewer: renewer, single: m.ipip}
	if renewer == nil {
		r.renewer = r
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	frame, err := f.writer(n, flags)
	if err != nil {
		return r, err
	}
	rows, err := newFrames(n.count, frame)
	if err != nil {
		return r, err
	}
	shared, err := rows.Clone()
	if err != nil {
		return r, errors.Join(err, rows.Close())
	}
	if r.xdp, err = r.player(bpf.FromWireXDP, rows); err != nil {
		return r, errors.Join(err, shared.Close())
	}
	if r.tc, err = r.player(bpf.FromWire, shared); err != nil {
		return r, err
	}
	spec, program, err := kindOf(r.datapath, bpf.FromWireXDP)
	if err != nil {
		return r, err
	}
	spec.Instructions = ending(xdpTX)
	r.program = program
	r.returning, err = ebpf.NewProgram(&spec)
	return r, err
}

// player closes rows, also after an error.
func (r *rig) player(hook bpf.Hook, rows *ebpf.Map) (*player, error) {
	spec, program, err := kindOf(r.datapath, hook)
	if err != nil {
		return nil, errors.Join(err, rows.Close())
	}
	target, err := newTarget(program)
	if err != nil {
		return nil, errors.Join(err, rows.Close())
	}
	r.targets = append(r.targets, target)
	if hook == bpf.FromWireXDP {
		spec.Instructions = restoring(int(rows.ValueSize()))
	}
	return playerOf(spec, rows, onTo(target))
}

// rewrite gives all frames other TCP flags.
func (r *rig) rewrite(flags string) error {
	frame, err := r.front.writer(r.flows, flags)
	if err != nil {
		return err
	}
	return putFrames(r.xdp.frames, frame)
}

// played counts packets by their XDP action. Packets that are neither forwarded nor dropped are passed to from_wire.
type played struct {
	packets, forwarded, dropped int
	took                        time.Duration // all of them together
}

func (p played) passed() int { return p.packets - p.forwarded - p.dropped }

func (p *played) add(o played) {
	p.packets, p.forwarded, p.dropped = p.packets+o.packets, p.forwarded+o.forwarded, p.dropped+o.dropped
	p.took += o.took
}

// play plays frames through XDP, and again where the forwarding cache may have expired in the middle.
func (r *rig) play(first, count int) (sum played, err error) {
	for at := first; at < first+count; at += chunk {
		p, err := r.playChunk(at, min(chunk, first+count-at))
		if err != nil {
			return sum, err
		}
		sum.add(p)
	}
	return sum, nil
}

func (r *rig) playChunk(first, count int) (p played, err error) {
	const attempts = 5
	for range attempts {
		if p, err = r.playOnce(first, count); !errors.Is(err, errExpired) {
			return p, err
		}
	}
	return p, err
}

func (r *rig) playOnce(first, count int) (played, error) {
	const valid = 900 * time.Millisecond // a second less some ticks
	before, err := r.outcomes()
	if err != nil {
		return played{}, err
	}
	var run testRun
	expired := false
	err = r.there(func() (err error) {
		start := time.Now()
		if err := (&bpf.Epochs{Map: r.datapath.Epochs}).Bump(0); err != nil {
			return err
		}
		if err := r.renewer.run(0, min(renewing, r.renewer.flows.count)); err != nil {
			return err
		}
		if err := r.xdp.seek(first); err != nil {
			return err
		}
		run, err = r.xdp.run(r.front.index[0], count)
		expired = time.Since(start) > valid
		return err
	})
	if err == nil && expired {
		err = errExpired
	}
	if err != nil {
		return played{}, err
	}
	after, err := r.outcomes()
	next, err2 := r.xdp.played()
	return played{packets: int(next) - first, forwarded: after.forwarded - before.forwarded,
			dropped: after.dropped - before.dropped, took: time.Duration(run.duration) * time.Duration(count)},
		errors.Join(err, err2)
}

// outcomes returns the XDP outcomes of all packets so far.
func (r *rig) outcomes() (sum played, err error) {
	cpus, err := cpusOf(r.datapath)
	for i := range cpus {
		counters := &cpus[i].Counters[bpf.DatapathHookHOOK_FROM_WIRE_XDP]
		sum.forwarded += int(counters[bpf.DatapathOutcomeFORWARD_WIRE].Packets)
		for outcome := bpf.DatapathOutcomeDROP_FIRST; outcome < bpf.DatapathOutcomeOUTCOMES; outcome++ {
			sum.dropped += int(counters[outcome].Packets)
		}
	}
	return sum, err
}

// there calls fn on the load balancer's node and CPU.
func (r *rig) there(fn func() error) error {
	return undisturbed(r.front.prefix+"a", balancerProcessor, usually, fn)
}

// through plays frames through from_wire.
func (r *rig) through(first, count int) error {
	return r.there(func() error { return r.run(first, count) })
}

// run is through, for callers that are there. It also renews the forwarding cache.
func (r *rig) run(first, count int) error {
	if err := r.tc.seek(first); err != nil {
		return err
	}
	if !r.single {
		_, err := r.tc.run(r.front.index[0], count)
		return err
	}
	for range count {
		if _, err := r.tc.run(r.front.index[0], 1); err != nil {
			return err
		}
	}
	return nil
}

// cost is how long our program takes for a packet, on average of so many.
func (r *rig) cost(packets int) (ns float64, err error) {
	ours, err := r.play(0, packets)
	if err != nil {
		return 0, err
	}
	if ours.forwarded != ours.packets {
		return 0, fmt.Errorf("%d of %d packets left by the wire", ours.forwarded, ours.packets)
	}
	if err := r.targets[0].Put(uint32(0), r.returning); err != nil {
		return 0, err
	}
	idle, err := r.play(0, packets)
	err = errors.Join(err, r.targets[0].Put(uint32(0), r.program))
	return float64(ours.took-idle.took) / float64(packets), err
}

func (r *rig) close() error {
	var errs []error
	for _, p := range []*player{r.xdp, r.tc} {
		if p != nil {
			errs = append(errs, p.close())
		}
	}
	for _, m := range r.targets {
		errs = append(errs, m.Close())
	}
	return errors.Join(append(errs, r.returning.Close())...)
}

// writer returns what write would, of TCP flows to the Service, one frame at a time: parsing a million would take
// minutes. The buffer is good until the next call.
func (f *front) writer(n flows, flags string) (func(int) []byte, error) {
	n.clients = max(n.clients, 1)
	firsts, err := f.write(flows{count: n.clients, clients: n.clients, first: n.first}, "lb",
		fmt.Sprintf("tcp %%d > %d %s", frontTCP, flags))
	if err != nil {
		return nil, err
	}
	port := 14 + 20
	if f.family == IPv6 {
		port = 14 + 40
	}
	const checksum = 16 // behind the port
	each, frame := n.count/n.clients, make([]byte, len(firsts[0]))
	return func(i int) []byte {
		copy(frame, firsts[i/each])
		was, is := uint16(n.first), uint16(n.first+i%each)
		binary.BigEndian.PutUint16(frame[port:], is)
		sum := ^binary.BigEndian.Uint16(frame[port+checksum:]) // RFC 1624
		packed := uint32(sum) + uint32(^was) + uint32(is)
		packed = packed&0xffff + packed>>16
		packed = packed&0xffff + packed>>16
		binary.BigEndian.PutUint16(frame[port+checksum:], ^uint16(packed))
		return frame
	}, nil
}

// replies are the backends' SYN-ACKs in flows with SNAT.
func (f *front) replies(entries map[bpf.DatapathNatTuple]bpf.DatapathNatEntry) (frames [][]byte, err error) {
	size := 0
	for _, e := range entries {
		text := fmt.Sprintf("eth client > lb | ip %s > %s ttl 64 | tcp %d > %d SA", e.Backend.Netip(), e.Snat.Netip(),
			bpf.Port(e.BackendPort), bpf.Port(e.NatPort))
		if size == 0 {
			bare, err := packet.Parse(text, packet.Family(f.family), f.names())
			if err != nil {
				return nil, fmt.Errorf("write frame %q: %w", text, err)
			}
			size = frameSize(len(bare)) - len(bare)
		}
		frame, err := packet.Parse(fmt.Sprintf("%s | len %d", text, size), packet.Family(f.family), f.names())
		if err != nil {
			return nil, fmt.Errorf("write frame %q: %w", text, err)
		}
		frames = append(frames, frame)
	}
	return frames, nil
}
