package flow_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/event"
	"myelin/flow"
	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// fixed names the pod and the node.
type fixed struct{}

func (fixed) Owner(a netip.Addr) (string, uint32) {
	switch a.String() {
	case "10.0.1.2", "fd00:1::2":
		return "demo/pod", 65536
	case "192.168.0.1", "fd00::1":
		return "host", 1
	}
	return "", 0
}
func (fixed) Link(index int) string { return map[int]string{2: "eth0", 3: "mye1"}[index] }

func names() packet.Names {
	return packet.Names{
		"pod": {MAC: []byte{2, 0, 0, 0, 0, 1}, IP4: netip.MustParseAddr("10.0.1.2"),
			IP6: netip.MustParseAddr("fd00:1::2")},
		"world": {MAC: []byte{2, 0, 0, 0, 0, 2}, IP4: netip.MustParseAddr("198.51.100.1"),
			IP6: netip.MustParseAddr("2001:db8::1")},
		"node": {MAC: []byte{2, 0, 0, 0, 0, 3}, IP4: netip.MustParseAddr("192.168.0.1"),
			IP6: netip.MustParseAddr("fd00::1")},
	}
}

func addr(f packet.Family, name string) netip.Addr {
	if f == packet.IPv6 {
		return names()[name].IP6
	}
	return names()[name].IP4
}

func list(t *testing.T, d *bpf.Datapath, hz uint32) (flows []*flow.Flow) {
	t.Helper()
	clock, err := flow.ReadClock(hz)
	if err != nil {
		t.Fatal(err)
	}
	if err := flow.List(d, fixed{}, clock, func(f *flow.Flow) bool {
		flows = append(flows, f)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return flows
}

// TestListOfTheDatapathsRows reads rows that the datapath itself has made.
func TestListOfTheDatapathsRows(t *testing.T) {
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1, Ipv6: 1, FlowAlways: 1}, nil)
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		for _, text := range []string{
			`eth world > pod | ip world > pod | tcp 40000 > 80 S`,
			`eth pod > world | ip pod > world | tcp 80 > 40000 SA`,
			`eth world > pod | ip world > pod | tcp 40000 > 80 A | len 100`,
		} {
			bpftest.Send(t, d, bpf.ToPod, f, names(), text)
		}
		flows := slices.DeleteFunc(list(t, d, 1000), func(x *flow.Flow) bool { return x.Src.Addr != addr(f, "world") })
		if len(flows) != 1 {
			t.Fatalf("%d flows, want one", len(flows))
		}
		got := flows[0]
		want := &flow.Flow{
			Src: event.Party{Addr: addr(f, "world"), Port: 40000}, Dst: event.Party{Addr: addr(f, "pod"), Port: 80,
				Pod: "demo/pod", Identity: 65536},
			Protocol: "TCP", ID: got.ID, Course: flow.Course{
				State: flow.Replied, Sent: flow.Traffic{Packets: 2, Bytes: got.Sent.Bytes, TCPFlags: 0x12},
				Received: flow.Traffic{Packets: 1, Bytes: got.Received.Bytes, TCPFlags: 0x12}, Age: got.Age,
				Idle: got.Idle,
			},
		}
		if *got != *want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		if got.Sent.Bytes < 200 || got.Received.Bytes < 54 || time.Duration(got.Age) > time.Minute || got.Age < 0 {
			t.Errorf("%+v", got)
		}
	})
}

// nat is a row of a translated flow as the datapath keeps it: the pod, behind
// the node's address, talks to the world.
func nat(f packet.Family) (flow.Key, flow.Row) {
	k := flow.Key{Proto: 17}
	pod := 0 // the side of the smaller address, which for both families is the node's
	k.Addr[pod], k.Port[pod] = bpf.Addr(addr(f, "node")), bpf.Port(10001)
	k.Addr[1-pod], k.Port[1-pod] = bpf.Addr(addr(f, "world")), bpf.Port(53)
	r := flow.Row{
		Pod: bpf.Addr(addr(f, "pod")), PodPort: bpf.Port(40000), Origin: uint8(pod), Slot: 2,
		Flags: uint8(bpf.DatapathFlowFlagFLOW_NAT | bpf.DatapathFlowFlagFLOW_REPLIED),
	}
	r.PodSide, r.Way.DstSlot = uint8(pod), 2
	r.Side[pod].Packets, r.Side[pod].Bytes = 3, 300
	r.Side[1-pod].Packets, r.Side[1-pod].Bytes = 2, 250
	return k, r
}

func TestTranslatedFlow(t *testing.T) {
	clock := flow.Clock{Ticks: 8000, Hz: 100}
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		k, r := nat(f)
		r.Seen, r.Created = 7750, 2000
		got := flow.Name(fixed{}, clock, &k, &r)
		node, pod, world := netip.AddrPortFrom(addr(f, "node"), 10001), netip.AddrPortFrom(addr(f, "pod"),
			40000), netip.AddrPortFrom(addr(f, "world"), 53)
		if got.Translated != node || got.Src.Addr != pod.Addr() || got.Src.Port != 40000 || got.Src.Pod != "demo/pod" ||
			got.Dst.Addr != world.Addr() {
			t.Errorf("%+v", got)
		}
		row := strings.Join(got.TableRow(), " | ")
		want := "demo/pod (65536) " + pod.String() + " | " + world.String() + " | UDP | " + node.String() +
			" | replied | 3/2 | 300/250 | - | 1m0s | 2.5s |  | " + got.ID
		if row != want {
			t.Errorf("row\n%s, want\n%s", row, want)
		}
		if len(got.TableRow()) != len(got.TableHeader()) {
			t.Errorf("%d cells under %d columns", len(got.TableRow()), len(got.TableHeader()))
		}
		var fields map[string]any
		data, err := json.Marshal(got)
		if err == nil {
			err = json.Unmarshal(data, &fields)
		}
		if err != nil || fields["ageSeconds"] != 60.0 || fields["idleSeconds"] != 2.5 ||
			fields["translated"] != node.String() {
			t.Errorf("%s: %v", data, err)
		}
		r.Rule, r.Flags = [2]uint32{0, 7}, r.Flags|uint8(bpf.DatapathFlowFlagFLOW_DENIED)
		if cut := flow.Name(fixed{}, clock, &k, &r); cut.ID != got.ID || cut.TableRow()[4] != "denied" ||
			cut.TableRow()[10] != "egress by rule 7, which is no more" {
			t.Errorf("a flow that is denied now: %+v", cut.TableRow())
		}
		other := k
		if other.Port[0]++; flow.ID(&other) == got.ID || len(got.ID) != 16 {
			t.Errorf("another flow has the ID %s too", got.ID)
		}
		r.Origin = 1 // the world spoke first, on a row that was there
		if back := flow.Name(fixed{}, clock, &k, &r); back.Dst.Pod != "demo/pod" || back.Src.Addr != world.Addr() ||
			back.Sent.Packets != 2 {
			t.Errorf("begun by the world: %+v", back)
		}
	})
}

func TestBehind(t *testing.T) {
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1}, nil)
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		k, r := nat(f)
		if err := d.Flows.Put(&k, &r); err != nil {
			t.Fatal(err)
		}
		end := event.Raw{
			Type: uint8(bpf.DatapathEventTypeEVENT_FLOW_END), Hook: uint8(bpf.DatapathHookHOOK_FROM_WIRE), Proto: 17,
			Src: bpf.Addr(addr(f, "world")), Sport: bpf.Port(53), Dst: bpf.Addr(addr(f, "node")),
			Dport: bpf.Port(10001),
		}
		got := end
		if err := flow.Behind(d.Flows, &got); err != nil {
			t.Fatal(err)
		}
		if got.Dst.Netip() != addr(f, "pod") || bpf.Port(got.Dport) != 40000 || got.Src != end.Src || got.Slot != 2 {
			t.Errorf("%+v", got)
		}
		for _, other := range []func(*event.Raw){
			func(e *event.Raw) { e.Proto = 6 },
			func(e *event.Raw) { e.Hook = uint8(bpf.DatapathHookHOOK_FROM_POD) },
			func(e *event.Raw) { e.Type = uint8(bpf.DatapathEventTypeEVENT_DROP) },
		} {
			e := end
			other(&e)
			got := e
			if err := flow.Behind(d.Flows, &got); err != nil || got != e {
				t.Errorf("%+v became %+v, %v", e, got, err)
			}
		}
	})
}
