package engine_test

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netns"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/drop"
	"myelin/endpoint"
	"myelin/policy"
	"myelin/policy/engine"
	"myelin/policy/maps"
	"myelin/test/packet"
	"myelin/test/policy/reference"
)

// device is the loopback device, which stands for every link and wire.
const device = 1

// program asks the loaded datapath by packets that begin flows.
//
//	pods of the node -- from_pod, to_pod -- node -- from_wire, to_wire -- all others
//
// The node has no routes: what isn't for a pod goes to the host's stack, if
// policies let it.
type program struct {
	testing.TB
	*bpf.Datapath
	epochs *bpf.Epochs
	port   uint16 // of the client that came last
	last   map[string]uint64
	denied int
}

func newProgram(t testing.TB, k *maps.Writer) *program {
	d := engine.DatapathOf(k)
	p := &program{TB: t, Datapath: d, epochs: &bpf.Epochs{Map: d.Epochs}}
	p.last = p.counted()
	return p
}

// enter moves the test into a network namespace that has nothing, for as long as it lasts.
func enter(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	empty, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		empty.Close()
		if netns.Set(home) == nil {
			runtime.UnlockOSThread() // else the thread ends with the test
		}
		home.Close()
	})
}

func macs() (pod, link net.HardwareAddr) {
	return net.HardwareAddr{2, 0, 0, 0, 0, 0x0a}, net.HardwareAddr{2, 0, 0, 0, 0, 0x1a}
}

// place writes the endpoints of a world in the place of another's.
func (p *program) place(slots map[netip.Addr]uint16) {
	p.Helper()
	p.empty(p.Endpoints)
	for addr, slot := range slots {
		if err := p.Endpoints.Put(bpf.Addr(addr), endpointRow(slot)); err != nil {
			p.Fatal(err)
		}
	}
}

// forget deletes all conntrack entries and clears the per-CPU flow caches: ICMP messages other than echo share one
// entry per pair of addresses.
func (p *program) forget() {
	p.Helper()
	p.empty(p.Flows)
	if err := p.epochs.Bump(0); err != nil {
		p.Fatal(err)
	}
}

func endpointRow(slot uint16) bpf.DatapathEndpoint {
	if slot == endpoint.HostID {
		return bpf.DatapathEndpoint{Slot: slot, Flags: uint8(bpf.DatapathEndpointFlagENDPOINT_HOST)}
	}
	pod, link := macs()
	return bpf.DatapathEndpoint{Ifindex: device, Slot: slot, PodMac: bpf.MAC(pod), LinkMac: bpf.MAC(link)}
}

func (p *program) empty(m *ebpf.Map) {
	p.Helper()
	key := make([]byte, m.KeySize())
	for m.NextKey(nil, &key) == nil {
		if err := m.Delete(key); err != nil {
			p.Fatalf("empty %s: %v", m, err)
		}
	}
}

// hook is where a probe comes in, and the ends that are asked there.
func hook(slots map[netip.Addr]uint16, p reference.Probe) (at bpf.Hook, ends []policy.Direction) {
	src, dst := slots[p.Src], slots[p.Dst]
	if src != 0 {
		ends = append(ends, policy.Egress)
	}
	if dst != 0 {
		ends = append(ends, policy.Ingress)
	}
	switch {
	case src > endpoint.HostID:
		return bpf.FromPod, ends
	case dst > endpoint.HostID && src == endpoint.HostID:
		return bpf.ToPod, ends
	case src == endpoint.HostID:
		return bpf.ToWire, ends
	}
	return bpf.FromWire, ends
}

// ask sends a probe's first packet, and returns what became of it.
func (p *program) ask(at bpf.Hook, slot uint16, probe reference.Probe) (outcome string) {
	p.Helper()
	p.forget()
	if at == bpf.FromPod {
		link := bpf.DatapathPodLink{Endpoint: endpointRow(slot), Addr4: bpf.Addr(probe.Src), Addr6: bpf.Addr(probe.Src)}
		if err := p.PodLinks.Put(uint32(device), link); err != nil {
			p.Fatal(err)
		}
	}
	family := packet.IPv6
	if probe.Src.Is4() {
		family = packet.IPv4
	}
	bpftest.Send(p, p.Datapath, at, family, nil, p.text(probe))
	counted := p.counted()
	for name, n := range counted {
		if n != p.last[name] {
			outcome += name
		}
	}
	p.last = counted
	return outcome
}

// text is a packet of a client that has sent none before.
func (p *program) text(probe reference.Probe) string {
	const first = 1024
	pod, link := macs()
	p.port = max(p.port+1, first)
	l4 := fmt.Sprintf("icmp type %d rest %d", probe.Port, uint32(p.port)<<16)
	switch probe.Proto {
	case policy.ProtoTCP:
		l4 = fmt.Sprintf("tcp %d > %d S", p.port, probe.Port)
	case policy.ProtoUDP:
		l4 = fmt.Sprintf("udp %d > %d", p.port, probe.Port)
	case policy.ProtoSCTP:
		l4 = fmt.Sprintf("sctp %d > %d init", p.port, probe.Port)
	}
	return fmt.Sprintf("eth %s > %s | ip %s > %s | %s", pod, link, probe.Src, probe.Dst, l4)
}

// counted is how many packets had each outcome.
func (p *program) counted() map[string]uint64 {
	p.Helper()
	list, err := drop.Counters{Cpus: p.Cpus}.Read()
	if err != nil {
		p.Fatal(err)
	}
	counted := map[string]uint64{}
	for _, c := range list {
		counted[c.Outcome.Name] += c.Packets
	}
	return counted
}

// Allowed are the outcomes of what policies let through. What goes on into a
// pod from the host's stack is not counted.
func Allowed(at bpf.Hook) []string {
	if at == bpf.ToPod {
		return []string{""}
	}
	return []string{"FORWARD_POD", "FORWARD_STACK"}
}

// check compares what becomes of a probe with the reference.
func (p *program) check(w *reference.World, slots map[netip.Addr]uint16, probe reference.Probe) (bad string) {
	p.Helper()
	at, ends := hook(slots, probe)
	want, why := true, ""
	for _, dir := range ends {
		v := w.Ingress(probe)
		if dir == policy.Egress {
			v = w.Egress(probe)
		}
		want, why = want && v.Allowed, why+fmt.Sprintf(" %s: %s;", dir, v.Why)
	}
	got := p.ask(at, slots[probe.Src], probe)
	if !want {
		p.denied++
	}
	if slices.Contains(Allowed(at), got) == want && (want || got == "DROP_POLICY_DENIED" ||
		got == "DROP_POLICY_NO_RULE") {
		return ""
	}
	return fmt.Sprintf("%s counts %q, against%s", at, got, why)
}
