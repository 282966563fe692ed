package bench

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"myelin/test/packet"
)

// Each cost is measured, of both families, with its ratio. A packet that is translated costs more than one for no
// Service, and a new flow more than the bound.
func TestPerPacket(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	list, err := PerPacket(t.Context(), Options{Rounds: 3, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, r := range list {
		got[r.Name] = r.Value
		switch known := strings.HasPrefix(r.Name, knownToTC); {
		case known && (r.Value < 0 || r.Value > 50 || r.Unit != "%"),
			!known && (r.Value <= 0 || (r.Unit == "ns") != strings.Contains(r.Name, "/ns_")):
			t.Errorf("%+v", r)
		}
	}
	for _, ratio := range []string{"xdp/tcp_new_vs_bound", "xdp/udp_new_vs_bound"} {
		if got[ratio] < 1 || got[ratio+"6"] < 1 {
			t.Errorf("%s: %v and %v: less than the bound", ratio, got[ratio], got[ratio+"6"])
		}
	}
	for _, family := range []string{"_v4", "_v6"} {
		if hit, miss := got["xdp/ns_udp_hit"+family], got["xdp/ns_miss"+family]; hit <= miss {
			t.Errorf("%s: a packet of a known flow takes %v ns, one for no Service %v", family, hit, miss)
		}
	}
	want := 0
	for _, c := range costs() {
		want += 2
		want += 2 * len(c.ratios)
		if c.known {
			want += 2
		}
	}
	if len(got) != want || len(list) != want {
		t.Errorf("%d results with %d names, not %d", len(list), len(got), want)
	}
}

func TestMedianRatio(t *testing.T) {
	got, err := medianRatio([]float64{10, 40, 90}, []float64{10, 10, 30})
	if err != nil || got != 3 {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := medianRatio([]float64{10, 10}, []float64{10, 0}); err == nil {
		t.Errorf("a baseline of 0: %v", got)
	}
}

// Clients share the flows, and all frames are of one length.
func TestWriteFlows(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for _, family := range []Family{IPv4, IPv6} {
		f := &front{family: family, mac: [2]net.HardwareAddr{mac, mac}}
		frames, err := f.write(flows{count: 4, clients: 2, first: 7}, "lb", "udp %d > 53")
		if err != nil {
			t.Fatal(err)
		}
		names := f.names()
		var got []string
		for _, frame := range frames {
			if len(frame) != len(frames[0]) {
				t.Errorf("frames of %d and %d bytes", len(frame), len(frames[0]))
			}
			got = append(got, packet.Format(frame, names))
		}
		second := map[Family]string{IPv4: "198.51.100.8", IPv6: "2001:db8:7::8"}[family]
		for i, part := range []string{"client > lb", "client > lb", second + " > lb", second + " > lb"} {
			if port := []string{"udp 7 > 53", "udp 8 > 53"}[i%2]; !strings.Contains(got[i], part+" ") ||
				!strings.Contains(got[i], port) {
				t.Errorf("frame %d: %s, not from %s, %s", i, got[i], part, port)
			}
		}
	}
}

// A program that encapsulates gets packets of the right length in each run.
func TestRestoring(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to load BPF programs")
	}
	frames := [][]byte{bytes.Repeat([]byte{1}, 64), bytes.Repeat([]byte{2}, 64)}
	grow := slices.Concat(asm.Instructions{asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, -20),
		asm.FnXdpAdjustHead.Call()}, ending(xdpTX))
	p, err := newPlayer(ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: restoring(64)}, frames, grow)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	out := make([]byte, 256)
	opts := &ebpf.RunOptions{Data: make([]byte, 64), DataOut: out, Repeat: 101}
	if verdict, err := p.Run(opts); err != nil || verdict != xdpTX || len(opts.DataOut) != 84 ||
		!bytes.Equal(opts.DataOut[20:], frames[0]) {
		t.Errorf("%d, %v: %x", verdict, err, opts.DataOut)
	}
}
