package bpf

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// natPort sends a packet of TCP or UDP, and returns the source port that it left with.
func (w *world) natPort(t testing.TB, f packet.Family, link, text string) string {
	t.Helper()
	r, err := packettest.Run(w.FromPod, packettest.Frame(t, f, worldNames(), text),
		packettest.Options{Ifindex: uint32(w.index[link])})
	must(t, err)
	if r.Ret != actRedirect {
		t.Fatalf("%s was not forwarded: %d", text, r.Ret)
	}
	return strconv.Itoa(int(sourcePort(r.Out)))
}

// sourcePort is that of a packet without options or extension headers.
func sourcePort(frame []byte) uint16 {
	l4 := 14 + 20
	if frame[12] == 0x86 {
		l4 = 14 + 40
	}
	return binary.BigEndian.Uint16(frame[l4:])
}

// Flows to one place, more than the range has ports: each that is forwarded has a port of its own and keeps it, the
// others have a name.
func TestNatPortsAreNeverShared(t *testing.T) {
	s := settingsOf(masquerading)
	s.NatPortMin, s.NatPortMax = 50000, 50009
	w := newWorld(t, s, onlyForwarding)
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		defer w.enter(t)()
		w.forget(t)
		had := w.counters(t)
		ports := map[uint16]int{}
		for round := range 2 {
			for sport := 40000; sport < 40030; sport++ {
				in := packettest.Frame(t, f, worldNames(),
					fmt.Sprintf(`eth a > gw | ip a > world | udp %d > 53`, sport))
				r, err := packettest.Run(w.FromPod, in, packettest.Options{Ifindex: uint32(w.index["linka"])})
				must(t, err)
				if r.Ret != actRedirect {
					continue
				}
				p := sourcePort(r.Out)
				if p < 50000 || p > 50009 {
					t.Fatalf("port %d is outside of the range", p)
				}
				if owner, ok := ports[p]; ok && owner != sport {
					t.Fatalf("round %d: port %d is that of %d and of %d", round, p, owner, sport)
				}
				ports[p] = sport
			}
		}
		no := w.counters(t)[DatapathHookHOOK_FROM_POD][DatapathOutcomeDROP_NAT_NO_PORT] -
			had[DatapathHookHOOK_FROM_POD][DatapathOutcomeDROP_NAT_NO_PORT]
		if len(ports) < 8 || no != uint64(2*(30-len(ports))) {
			t.Errorf("%d of 10 ports are used, %d packets of 60 had none; want at least 8, and 2 for each flow without",
				len(ports), no)
		}
	})
}

// Each of a range's ports is found, whichever is left, also by a connection that
// has none of its candidates; and so are its packets and answers, and those of
// its index entry's owner alone.
func TestNatFindsEveryPort(t *testing.T) {
	const first, last = 50000, 50299
	s := settingsOf(masquerading)
	s.NatPortMin, s.NatPortMax = first, last
	w := newWorld(t, s, onlyForwarding)
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		defer w.enter(t)()
		w.forget(t)
		ports := map[string]int{}
		for sport := 40000; sport <= 40000+last-first; sport++ {
			text := fmt.Sprintf("eth a > gw | ip a > world | tcp %d > 80 ", sport)
			port := w.natPort(t, f, "linka", text+"S")
			if owner, ok := ports[port]; ok {
				t.Fatalf("port %s is that of %d and of %d", port, owner, sport)
			}
			ports[port] = sport
			w.answered(t, f, port, sport)
			if again := w.natPort(t, f, "linka", text+"A"); again != port {
				t.Fatalf("port %s became %s with the next packet of %d", port, again, sport)
			}
		}
		// A pod that has all ports gives one up for another pod.
		port := w.natPort(t, f, "linkb", "eth b > gwb | ip b > world | tcp 1 > 80 S")
		for _, row := range w.flows(t) {
			if row.PodPort == Port(1) {
				ports[port] = 0
			}
		}
		if ports[port] != 0 {
			t.Errorf("port %s is no entry of pod b's", port)
		}
	})
}

// answered has the world answer a connection of pod a.
func (w *world) answered(t testing.TB, f packet.Family, port string, sport int) {
	t.Helper()
	in := packettest.Frame(t, f, worldNames(), "eth router > node | ip world > node | tcp 80 > "+port+" SA")
	r, err := packettest.Run(w.FromWire, in, packettest.Options{Ifindex: uint32(w.index["eth0"])})
	must(t, err)
	l4 := 14 + 20
	if f == packet.IPv6 {
		l4 = 14 + 40
	}
	if got := int(binary.BigEndian.Uint16(r.Out[l4+2:])); r.Ret != actRedirect || got != sport {
		t.Fatalf("the answer to port %s came to %d, verdict %d, want %d", port, got, r.Ret, sport)
	}
}

// Packets of the same new flows on all CPUs at once: each flow has one row, and each row one flow.
func TestNatFlowsBeginOnAllCPUs(t *testing.T) {
	s := settingsOf(masquerading)
	s.NatPortMin, s.NatPortMax = 50000, 52999
	w := newWorld(t, s, onlyForwarding)
	const flows, workers = 300, 8
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		w.forgetIn(t)
		var frames [][]byte
		for i := range flows {
			frames = append(frames, packettest.Frame(t, f, worldNames(),
				fmt.Sprintf(`eth a > gw | ip a > world | udp %d > 53`, 20000+i)))
		}
		var (
			wg   sync.WaitGroup
			errs = make(chan error, workers)
		)
		for range workers {
			wg.Go(func() { errs <- w.sendAll(t, frames) })
		}
		wg.Wait()
		for range workers {
			must(t, <-errs)
		}
		ports := map[uint16]bool{}
		for _, row := range w.flows(t) {
			if ports[row.PodPort] {
				t.Errorf("the flow from port %d has two rows", Port(row.PodPort))
			}
			ports[row.PodPort] = true
			if n := row.Side[0].Packets + row.Side[1].Packets; n != workers {
				t.Errorf("the row of port %d counted %d packets, want %d", Port(row.PodPort), n, workers)
			}
		}
		if len(ports) != flows {
			t.Errorf("%d flows have rows, want %d", len(ports), flows)
		}
	})
}

func (w *world) forgetIn(t testing.TB) {
	t.Helper()
	defer w.enter(t)()
	w.forget(t)
}

// sendAll sends frames on linka, on whatever CPU the kernel likes.
func (w *world) sendAll(t testing.TB, frames [][]byte) error {
	defer w.enterAnyCPU(t)()
	for _, frame := range frames {
		r, err := packettest.Run(w.FromPod, frame, packettest.Options{Ifindex: uint32(w.index["linka"])})
		if err != nil {
			return err
		}
		if r.Ret != actRedirect {
			return fmt.Errorf("%s was not forwarded: %d", packet.Format(frame, worldNames()), r.Ret)
		}
	}
	return nil
}
