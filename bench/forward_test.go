package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"myelin/bench/results"
	"myelin/bpf"
)

// A player's frames follow one another, whatever becomes of the packet, and what can't be played is refused.
func TestPlayer(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to load BPF programs")
	}
	var frames [][]byte
	for i := range 4 {
		frames = append(frames, bytes.Repeat([]byte{byte(i + 1)}, 64))
	}
	for _, kind := range []ebpf.ProgramType{ebpf.XDP, ebpf.SchedCLS} {
		p, err := newPlayer(ebpf.ProgramSpec{Type: kind}, frames, ending(tcPass))
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		for i := range 6 {
			out := make([]byte, 64)
			if _, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64), DataOut: out}); err != nil ||
				!bytes.Equal(out, frames[i%4]) {
				t.Errorf("%s, run %d: %x, %v", kind, i, out, err)
			}
		}
	}
	for name, bad := range map[string][][]byte{
		"none": nil, "three": frames[:3], "of 63 bytes": {make([]byte, 63)}, "empty": {{}},
		"of two lengths": {make([]byte, 64), make([]byte, 72)},
	} {
		if p, err := newPlayer(ebpf.ProgramSpec{Type: ebpf.XDP}, bad, ending(xdpTX)); err == nil {
			p.close()
			t.Errorf("%s: no error", name)
		}
	}
}

func TestFrameSize(t *testing.T) {
	for least, want := range map[int]int{42: 64, 64: 64, 65: 72, 74: 80} {
		if got := frameSize(least); got != want {
			t.Errorf("frameSize(%d) = %d, want %d", least, got, want)
		}
	}
}

func TestRatios(t *testing.T) {
	got := ratios(IPv6, [][]float64{{9, 12, 15}, {4, 3, 5}, {2, 1, 60}, {6, 6, 6}})
	want := []results.Result{
		{Name: "xdp/pps_vs_tc6", Value: 12, Unit: "packets/s", Baseline: 4, Ratio: 3},
		{Name: "xdp/pps_vs_iptables6", Value: 12, Unit: "packets/s", Baseline: 2, Ratio: 6},
		{Name: "xdp/pps_vs_nftables6", Value: 12, Unit: "packets/s", Baseline: 6, Ratio: 2},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Frames come back translated or encapsulated, from the hook that is to be measured; others aren't counted.
func TestFront(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, family := range []Family{IPv4, IPv6} {
		for name, by := range map[string]*mine{
			"tc": {}, "xdp": {xdp: true}, "ipip-tc": {ipip: true}, "ipip-xdp": {xdp: true, ipip: true},
		} {
			t.Run(name+family.suffix(), func(t *testing.T) {
				f := newFront(name, family, by)
				defer downAndGone(t, f)
				if err := f.stand(t.Context()); err != nil {
					t.Fatal(err)
				}
				checkFront(t, f, by.balancer.datapath)
			})
		}
	}
}

func downAndGone(t *testing.T, f *front) {
	t.Helper()
	err := f.down(context.Background())
	spaces, bad := filepath.Glob("/run/netns/" + f.prefix + "*")
	folders, worse := filepath.Glob(filepath.Join(os.TempDir(), f.prefix+"*"))
	if left := append(spaces, folders...); len(left) > 0 || errors.Join(err, bad, worse) != nil {
		t.Errorf("left behind: %v, %v", left, errors.Join(err, bad, worse))
	}
}

func checkFront(t *testing.T, f *front, d *bpf.Datapath) {
	t.Helper()
	const packets = 4096
	through := map[string]uint64{}
	for _, to := range []string{"lb", "unused"} {
		frames, err := f.write(flows{count: frontFlows, first: begunPort}, to, "udp %d > 53")
		if err != nil {
			t.Fatal(err)
		}
		p, err := newPlayer(ebpf.ProgramSpec{Type: ebpf.XDP}, frames, ending(xdpTX))
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		if through[to], err = f.send(p, packets); err != nil {
			t.Fatal(err)
		}
	}
	if through["lb"] < packets*99/100 || through["unused"] != 0 {
		t.Errorf("of %d packets each came back %v", packets, through)
	}
	hooks := map[bpf.Hook]uint64{}
	for _, hook := range []bpf.Hook{bpf.FromWire, bpf.FromWireXDP} {
		n, err := (&timing{datapath: d, cost: cost{hook: hook}}).forwarded()
		if err != nil {
			t.Fatal(err)
		}
		hooks[hook] = n
	}
	if most := hooks[bpf.FromWireXDP] > packets*9/10; most != f.frames() {
		t.Errorf("packets by hook: %v, XDP is on: %t", hooks, f.frames())
	}
}

// send has the kernel send packets of a player from the other end of the wire, and returns how many came back
// translated: if no end is polled apart, none is too fast for another.
func (f *front) send(p *player, packets uint32) (came uint64, err error) {
	const burst = 64 // as many as are polled for at once
	had, err := f.sink.count()
	if err == nil {
		err = undisturbed(f.prefix+"b", senderProcessor, usually, func() error {
			return p.live(f.index[1], packets, burst)
		})
	}
	if err == nil {
		came, err = f.sink.count()
	}
	if err != nil {
		return 0, fmt.Errorf("send frames through %s: %w", f.name, err)
	}
	return came - had, nil
}
