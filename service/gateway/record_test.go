package gateway

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	apiv1 "myelin/api/v1"
	"myelin/bpf"
	"myelin/flow"
	"myelin/service"
)

// example is a flow with DSR, of each family.
func example(v6 bool) *apiv1.PeerFlow {
	m := &apiv1.PeerFlow{
		ClientPort: 40000, FrontendPort: 80, BackendPort: 8080, Protocol: 6, State: established, IdleMs: 1500,
		AgeSeconds: 60,
	}
	client, frontend, backend := "198.51.100.7", "192.0.2.1", "10.0.1.1"
	if v6 {
		client, frontend, backend = "2001:db8:7::1", "2001:db8:2::1", "fd00:1::1"
	}
	m.ClientAddress, m.FrontendAddress, m.BackendAddress = raw(client), raw(frontend), raw(backend)
	return m
}

// other is the example of the other family.
func other(m *apiv1.PeerFlow) *apiv1.PeerFlow { return example(len(m.GetClientAddress()) == 4) }

func raw(a string) []byte { return netip.MustParseAddr(a).AsSlice() }

// What no load balancer can have is refused, whatever a peer sends.
func TestParseHostile(t *testing.T) {
	mapped := netip.MustParseAddr("::ffff:10.0.1.1").AsSlice()
	for name, change := range map[string]func(*apiv1.PeerFlow){
		"no client":            func(m *apiv1.PeerFlow) { m.ClientAddress = nil },
		"5 bytes":              func(m *apiv1.PeerFlow) { m.ClientAddress = make([]byte, 5) },
		"a megabyte":           func(m *apiv1.PeerFlow) { m.BackendAddress = make([]byte, 1<<20) },
		"unspecified":          func(m *apiv1.PeerFlow) { clear(m.FrontendAddress) },
		"mapped":               func(m *apiv1.PeerFlow) { m.BackendAddress = mapped },
		"multicast":            func(m *apiv1.PeerFlow) { m.BackendAddress = raw("224.0.0.1") },
		"multicast, IPv6":      func(m *apiv1.PeerFlow) { m.BackendAddress = raw("ff02::1") },
		"broadcast":            func(m *apiv1.PeerFlow) { m.BackendAddress = raw("255.255.255.255") },
		"loopback":             func(m *apiv1.PeerFlow) { m.BackendAddress = raw("127.0.0.1") },
		"loopback, IPv6":       func(m *apiv1.PeerFlow) { m.BackendAddress = raw("::1") },
		"port 0":               func(m *apiv1.PeerFlow) { m.BackendPort = 0 },
		"port 65536":           func(m *apiv1.PeerFlow) { m.ClientPort = 1 << 16 },
		"ICMP":                 func(m *apiv1.PeerFlow) { m.Protocol = 1 },
		"protocol 262":         func(m *apiv1.PeerFlow) { m.Protocol = 256 + 6 },
		"no state":             func(m *apiv1.PeerFlow) { m.State = 0 },
		"unknown state":        func(m *apiv1.PeerFlow) { m.State = 99 },
		"families of a client": func(m *apiv1.PeerFlow) { m.ClientAddress = other(m).ClientAddress },
		"direct, crossing":     func(m *apiv1.PeerFlow) { m.BackendAddress = other(m).BackendAddress },
		"half of SNAT":         func(m *apiv1.PeerFlow) { m.SnatAddress = m.BackendAddress },
		"SNAT, crossing": func(m *apiv1.PeerFlow) {
			m.SnatAddress, m.SnatPort = other(m).BackendAddress, 20000
		},
		"ended, of nothing": func(m *apiv1.PeerFlow) { m.State, m.FrontendAddress = ended, nil },
		"empty":             func(m *apiv1.PeerFlow) { proto.Reset(m) },
	} {
		for _, v6 := range []bool{false, true} {
			m := example(v6)
			if _, ok := parse(m); !ok {
				t.Fatal("the example is refused")
			}
			change(m)
			if r, ok := parse(m); ok {
				t.Errorf("%s: taken as %+v", name, r)
			}
		}
	}
}

// An entry goes through a message and back, as a flow that has no packets here.
func TestRecord(t *testing.T) {
	clock := flow.Clock{Ticks: 1 << 33, Hz: 250}
	for _, v6 := range []bool{false, true} {
		want, ok := parse(example(v6))
		if !ok {
			t.Fatal("the example is refused")
		}
		for name, change := range map[string]func(*record){
			"direct":  func(*record) {},
			"closing": func(r *record) { r.state = closing },
			"SNAT":    func(r *record) { r.snat = netip.AddrPortFrom(r.backend.Addr().Next(), 20001) },
			"UDP":     func(r *record) { r.protocol = service.UDP },
		} {
			r := want
			change(&r)
			key, e := r.key(), r.entry(clock, member{service: 3, backend: 4})
			if !learned(&e) || e.Service != 3 || e.BackendId != 4 {
				t.Errorf("%s: got %+v", name, e)
			}
			e.Packets[0] = provenRequests
			got, ok := parse(message(clock, &key, &e, stateOf(&key, &e)))
			if !ok || got != r {
				t.Errorf("%s: got %+v, want %+v", name, got, r)
			}
		}
	}
}

// A flood must not become one of the peers' tables.
func TestUnproven(t *testing.T) {
	tcp, udp := &bpf.DatapathNatTuple{Proto: 6}, &bpf.DatapathNatTuple{Proto: 17}
	entry := func(flags, client uint8, packets uint64) *bpf.DatapathNatEntry {
		return &bpf.DatapathNatEntry{Flags: flags, TcpFlags: [2]uint8{client, 0}, Packets: [2]uint64{packets, 0}}
	}
	got := []apiv1.PeerFlowState{
		stateOf(tcp, entry(flagDSR, 2, 9)), stateOf(tcp, entry(flagSNAT, flow.ACK, 9)),
		stateOf(udp, entry(flagDSR, 0, 1)),
		stateOf(tcp, entry(flagDSR, flow.ACK, 1)), stateOf(tcp, entry(flagSNAT|flagReplied, flow.ACK, 1)),
		stateOf(udp, entry(flagSNAT, 0, 2)), stateOf(tcp, entry(flagDSR|flagClosing, flow.ACK|flow.FIN, 4)),
	}
	want := []apiv1.PeerFlowState{unproven, unproven, unproven, established, established, established, closing}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The clock of the datapath began after the flow did.
func TestEntryBeforeClock(t *testing.T) {
	r, _ := parse(example(false))
	clock := flow.Clock{Ticks: 100, Hz: 1000}
	if e := r.entry(clock, member{}); e.CreatedAt() != 0 || clock.Idle(e.Seen) != 100*time.Millisecond {
		t.Errorf("created %d, idle %s", e.Created, clock.Idle(e.Seen))
	}
}
