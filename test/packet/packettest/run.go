// Package packettest runs BPF programs on packets without a network, by
// BPF_PROG_TEST_RUN, and compares what comes out with what was wanted, in the
// words of package packet.
//
// A program runs in the network namespace of the calling thread: interface
// indexes are looked up there, and the helpers that ask the kernel for routes
// or neighbours ask there. Redirects are not carried out, so a program's
// return code and the packet as it left it are all that can be seen.
package packettest

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// SkBuff is struct __sk_buff of linux/bpf.h, 192 bytes since Linux 5.16, 184
// before. Kernels take a longer one than theirs if the rest is zero.
type SkBuff struct {
	Len            uint32
	PktType        uint32
	Mark           uint32
	QueueMapping   uint32
	Protocol       uint32
	VLANPresent    uint32
	VLANTCI        uint32
	VLANProto      uint32
	Priority       uint32
	IngressIfindex uint32
	Ifindex        uint32
	TCIndex        uint32
	CB             [5]uint32
	Hash           uint32
	TCClassID      uint32
	Data           uint32
	DataEnd        uint32
	NAPIID         uint32
	Family         uint32
	RemoteIP4      uint32
	LocalIP4       uint32
	RemoteIP6      [4]uint32
	LocalIP6       [4]uint32
	RemotePort     uint32
	LocalPort      uint32
	DataMeta       uint32
	FlowKeys       uint64
	Tstamp         uint64
	WireLen        uint32
	GSOSegs        uint32
	Sk             uint64
	GSOSize        uint32
	TstampType     uint8
	_              [3]uint8
	HWTstamp       uint64
}

// Options is the part of SkBuff that the kernel lets a test set; it refuses
// (EINVAL) every other field.
type Options struct {
	Mark     uint32
	Priority uint32
	CB       [5]uint32

	// Ifindex is the device the packet is on, Linux 5.9; loopback if zero.
	Ifindex uint32

	// IngressIfindex is the device the packet came in by. It was allowed
	// later than Ifindex: a kernel from before answers EINVAL.
	IngressIfindex uint32

	// Tstamp is in nanoseconds.
	Tstamp uint64

	// WireLen is the length on the wire in bytes, at least that of the
	// packet; that of the packet if zero.
	WireLen uint32

	GSOSegs uint32
	GSOSize uint32

	// Linear is how many bytes of the packet, at least 14, a program can
	// reach without bpf_skb_pull_data; all if zero. Older kernels refuse it.
	Linear uint32
}

// Result is what a run left.
type Result struct {
	Ret uint32 // what the program returned
	Out []byte // the packet
	Skb SkBuff // its metadata: the fields of Options, and nothing else
}

// outRoom is how many bytes a program may add to a packet.
const outRoom = 512

// minLen is what the kernel asks of a packet: an Ethernet header.
const minLen = 14

// Run runs a SCHED_CLS program once on frame in. Kernels without Linear refuse
// a packet that doesn't fit into a page together with its metadata, some 3,400
// bytes of packet.
func Run(prog *ebpf.Program, in []byte, o Options) (Result, error) {
	if len(in) < minLen {
		return Result{}, fmt.Errorf("test-run %s: packet of %d bytes, at least %d are needed", prog, len(in), minLen)
	}
	ctx := SkBuff{
		Mark: o.Mark, Priority: o.Priority, CB: o.CB, Ifindex: o.Ifindex, IngressIfindex: o.IngressIfindex,
		Tstamp: o.Tstamp, WireLen: o.WireLen, GSOSegs: o.GSOSegs, GSOSize: o.GSOSize, DataEnd: o.Linear,
	}
	var r Result
	run := ebpf.RunOptions{Data: in, DataOut: make([]byte, len(in)+outRoom), Context: ctx, ContextOut: &r.Skb}
	ret, err := prog.Run(&run)
	if err != nil {
		return Result{}, fmt.Errorf("test-run %s on %d bytes: %w", prog, len(in), err)
	}
	r.Ret, r.Out = ret, run.DataOut
	return r, nil
}

// xdpMD is struct xdp_md of linux/bpf.h.
type xdpMD struct {
	Data, DataEnd, DataMeta uint32
	IngressIfindex, RXQueue uint32
	EgressIfindex           uint32
}

// RunXDP runs an XDP program once on frame in. ifindex is the device that the
// packet came in by, which has to be one with receive queues, and be up;
// loopback if zero. Kernels before 5.15 refuse any but zero.
func RunXDP(prog *ebpf.Program, in []byte, ifindex uint32) (ret uint32, out []byte, err error) {
	if len(in) < minLen {
		return 0, nil, fmt.Errorf("test-run %s: packet of %d bytes, at least %d are needed", prog, len(in), minLen)
	}
	run := ebpf.RunOptions{Data: in, DataOut: make([]byte, len(in)+outRoom)}
	if ifindex != 0 {
		run.Context = xdpMD{DataEnd: uint32(len(in)), IngressIfindex: ifindex}
	}
	if ret, err = prog.Run(&run); err != nil {
		return 0, nil, fmt.Errorf("test-run %s on %d bytes: %w", prog, len(in), err)
	}
	return ret, run.DataOut, nil
}

// runAny runs either kind of program. Of the options, XDP takes Ifindex.
func runAny(prog *ebpf.Program, in []byte, o Options) (Result, error) {
	if prog.Type() != ebpf.XDP {
		return Run(prog, in, o)
	}
	ret, out, err := RunXDP(prog, in, o.Ifindex)
	return Result{Ret: ret, Out: out}, err
}
