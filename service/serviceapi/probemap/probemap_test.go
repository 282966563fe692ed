package probemap

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/service/serviceapi/probe"
)

func flow(local, backend, frontend string, port uint16) *probe.Flow {
	return &probe.Flow{Local: netip.MustParseAddrPort(local), Backend: netip.MustParseAddrPort(backend),
		Frontend: probe.Frontend{Address: netip.MustParseAddrPort(frontend), Protocol: unix.IPPROTO_UDP}, Port: port}
}

func flows() []*probe.Flow {
	return []*probe.Flow{flow("192.168.0.1:40000", "198.51.100.1:8080", "192.0.2.10:53", 9000),
		flow("[fd00::1]:40000", "[2001:db8::1]:8080", "[2001:db8::a]:53", 53)}
}

// TestFlows: the rows of a flow while it is open, the traces that they leave, and nothing after them.
func TestFlows(t *testing.T) {
	d := bpftest.LoadMaps(t, bpf.Settings{}, map[string]uint32{"probes": 8})
	f, err := New(d, "IPIP")
	if err != nil {
		t.Fatal(err)
	}
	for way, want := range map[bpf.DatapathProbeWay]probe.Trace{
		bpf.DatapathProbeWayPROBE_UNSEEN:      {Early: true},
		bpf.DatapathProbeWayPROBE_NO_FRONTEND: {Early: true},
		bpf.DatapathProbeWayPROBE_PLAIN:       {},
		bpf.DatapathProbeWayPROBE_DSR:         {DSR: true, Replies: 7},
	} {
		for _, flow := range flows() {
			if err := f.Open(flow); err != nil {
				t.Fatal(err)
			}
			there, back := rows(t, d, flow)
			there.Way, back.Packets = uint8(way), want.Replies
			request, reply := keys(flow)
			if err := errors.Join(d.Probes.Put(request, there), d.Probes.Put(reply, back)); err != nil {
				t.Fatal(err)
			}
			if err := f.Open(flow); !errors.Is(err, ebpf.ErrKeyExist) || !strings.Contains(err.Error(),
				flow.Backend.String()) {
				t.Errorf("a flow is opened twice: %v", err)
			}
			if got, err := f.Close(flow); err != nil || got != want {
				t.Errorf("way %d: got %+v, %v, want %+v", way, got, err, want)
			}
		}
	}
	if n := count(t, d); n > 0 {
		t.Errorf("%d rows are left", n)
	}
}

// rows are those of an open flow, as the datapath reads them.
func rows(t *testing.T, d *bpf.Datapath, flow *probe.Flow) (there, back bpf.DatapathProbe) {
	t.Helper()
	request, reply := keys(flow)
	if err := errors.Join(d.Probes.Lookup(request, &there), d.Probes.Lookup(reply, &back)); err != nil {
		t.Fatal(err)
	}
	ends := [2]netip.AddrPort{netip.AddrPortFrom(there.Addr.Netip(), bpf.Port(there.Port)),
		netip.AddrPortFrom(back.Addr.Netip(), bpf.Port(back.Port))}
	at := netip.AddrPortFrom(flow.Frontend.Address.Addr(), flow.Port)
	if ends != [2]netip.AddrPort{at, flow.Backend} || there.Proto != unix.IPPROTO_UDP || there.Reply != 0 ||
		back.Reply != 1 || bpf.Port(there.FrontendPort) != flow.Frontend.Address.Port() {
		t.Errorf("rows of %+v: %+v, %+v", flow, there, back)
	}
	return there, back
}

func count(t *testing.T, d *bpf.Datapath) (n int) {
	t.Helper()
	err := bpf.Each(d.Probes, func(*bpf.DatapathNatTuple, *bpf.DatapathProbe) bool { n++; return true })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestFull: a flow that does not fit is an error, and leaves no row. A new agent deletes what the last one has left.
func TestFull(t *testing.T) {
	d := bpftest.LoadMaps(t, bpf.Settings{}, map[string]uint32{"probes": 3})
	f, err := New(d, "IPIP")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Open(flows()[0]); err != nil {
		t.Fatal(err)
	}
	if err := f.Open(flows()[1]); !errors.Is(err, unix.E2BIG) || count(t, d) != 2 {
		t.Errorf("a flow that does not fit: %v, %d rows", err, count(t, d))
	}
	if _, err := New(d, "IPIP"); err != nil || count(t, d) != 0 {
		t.Errorf("a new agent: %v, %d rows", err, count(t, d))
	}
}
