package hubble

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"github.com/cilium/ebpf/btf"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"myelin/bpf"
	"myelin/drop"
	"myelin/event"
	"myelin/policy/identity"
)

// fewNames are names of a cluster with two pods, one of which this node has, and a Service.
type fewNames struct{}

func (fewNames) Owner(a netip.Addr) (string, uint32) {
	if a == netip.MustParseAddr("10.0.1.2") {
		return "demo/client", 70000
	}
	return "", identity.WorldIPv4
}

func (fewNames) Link(index int) string { return map[int]string{3: "lxc1"}[index] }

func (fewNames) Endpoint(a netip.Addr) *flowpb.Endpoint {
	switch a.String() {
	case "10.0.1.2":
		return &flowpb.Endpoint{ID: 2, Identity: 70000, Namespace: "demo", PodName: "client", ClusterName: "default"}
	case "10.0.2.3":
		return &flowpb.Endpoint{Identity: 70001, Namespace: "shop", PodName: "server", ClusterName: "default"}
	case "192.168.0.1":
		return &flowpb.Endpoint{ID: 1, Identity: identity.Host}
	}
	return &flowpb.Endpoint{Identity: identity.WorldIPv4, Labels: []string{"reserved:world"}}
}

func (fewNames) Address(netns uint64, v6 bool) netip.Addr {
	if netns == 99 && !v6 {
		return netip.MustParseAddr("10.0.1.2")
	}
	return netip.Addr{}
}

func (fewNames) Service(at netip.AddrPort, protocol uint8) *flowpb.Service {
	if at == netip.MustParseAddrPort("10.96.0.10:80") && protocol == protoTCP {
		return &flowpb.Service{Namespace: "shop", Name: "web"}
	}
	return nil
}

func (fewNames) DNS(endpoint uint32, addr netip.Addr) []string {
	if endpoint == 2 && addr == netip.MustParseAddr("192.0.2.1") {
		return []string{"www.example.com"}
	}
	return nil
}

func (fewNames) Policies(rule uint32) []*flowpb.Policy {
	if rule == 5 {
		return []*flowpb.Policy{{Kind: "NetworkPolicy", Namespace: "shop", Name: "p"}}
	}
	return nil
}

func (fewNames) Rule(number uint32) string {
	if number == 5 {
		return "NetworkPolicy shop/p spec.ingress[0]"
	}
	return ""
}

func (fewNames) Isolating(netip.Addr, bool) []string { return []string{"NetworkPolicy shop/p"} }

func boot() time.Time { return time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC) }

func newConverter() *Converter {
	return NewConverter(fewNames{}, Node{Name: "default/node1", Version: "v1", Labels: func() []string {
		return []string{"zone=a"}
	}}, boot(), [8]byte{1, 2, 3, 4, 5, 6, 7, 8})
}

// packet is an event of IPv4 between two "address:port".
func packet(kind bpf.DatapathEventType, proto uint8, src, dst string) *event.Raw {
	from, to := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	return &event.Raw{
		TimeNs: uint64(10 * time.Second), Type: uint8(kind), Proto: proto, Family: 4, Ifindex: 3,
		Src: bpf.Addr(from.Addr()), Dst: bpf.Addr(to.Addr()), Sport: bpf.Port(from.Port()), Dport: bpf.Port(to.Port()),
		Smac: bpf.DatapathMac{B: [6]byte{2, 0, 0, 0, 0, 1}}, Hook: uint8(bpf.DatapathHookHOOK_FROM_POD), Slot: 2,
	}
}

// convert returns the event's flow; of a drop by policies, that of the drop.
func convert(t *testing.T, r *event.Raw) *flowpb.Flow {
	t.Helper()
	all := convertAll(t, r)
	return all[len(all)-1]
}

// convertAll reads events as a client does.
func convertAll(t *testing.T, events ...*event.Raw) (flows []*flowpb.Flow) {
	t.Helper()
	ring := newRing(t, 255)
	rec := &Recorder{Ring: ring}
	for _, e := range events {
		rec.Record(e)
	}
	r := &reader{ring: ring, convert: newConverter(), tracker: newTracker(5 * time.Second)}
	for r.step(boot) {
		it, ok, over := r.take()
		if !ok || over || it.flow == nil {
			t.Fatalf("%+v", it)
		}
		flows = append(flows, it.flow)
	}
	return flows
}

// flowJSON is a flow as JSON without what all flows have.
func flowJSON(t *testing.T, f *flowpb.Flow) string {
	t.Helper()
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), " ", "")
}

func expect(t *testing.T, f *flowpb.Flow, want ...string) {
	t.Helper()
	got := flowJSON(t, f)
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("%s is not in %s", w, got)
		}
	}
}

// TestUUID: an event has the same UUID whenever it is converted, and another one than other events.
func TestUUID(t *testing.T) {
	e := packet(bpf.DatapathEventTypeEVENT_TRACE, protoTCP, "10.0.1.2:40000", "10.0.2.3:8080")
	first, again := convert(t, e), convert(t, e)
	e.TimeNs++
	later := convert(t, e)
	if first.GetUuid() != again.GetUuid() || first.GetUuid() == later.GetUuid() {
		t.Errorf("%s, %s, later %s", first.GetUuid(), again.GetUuid(), later.GetUuid())
	}
}

func TestForwarded(t *testing.T) {
	e := packet(bpf.DatapathEventTypeEVENT_TRACE, protoTCP, "10.0.1.2:40000", "10.0.2.3:8080")
	e.Outcome, e.TcpFlags = uint8(bpf.DatapathOutcomeFORWARD_WIRE), tcpSYN
	f := convert(t, e)
	expect(t, f, `"time":"2026-11-23T00:00:10Z"`, `"uuid":"01020304-0506-8708-`,
		`"emitter":{"name":"Myelin","version":"v1"}`, `"verdict":"FORWARDED"`,
		`"ethernet":{"source":"02:00:00:00:00:01"}`,
		`"IP":{"source":"10.0.1.2","destination":"10.0.2.3","ipVersion":"IPv4"}`,
		`"l4":{"TCP":{"source_port":40000,"destination_port":8080,"flags":{"SYN":true}}}`,
		`"pod_name":"client"`, `"pod_name":"server"`, `"Type":"L3_L4"`, `"node_name":"default/node1"`,
		`"node_labels":["zone=a"]`, `"event_type":{"type":4,"sub_type":11}`, `"traffic_direction":"EGRESS"`,
		`"trace_observation_point":"TO_NETWORK"`, `"trace_reason":"NEW"`, `"is_reply":false`,
		`"interface":{"index":3,"name":"lxc1"}`, `"Summary":"TCPFlags:SYN"`)
}

func TestPointsOfForwarded(t *testing.T) {
	for outcome, want := range map[bpf.DatapathOutcome]string{
		bpf.DatapathOutcomeFORWARD_POD:    `"event_type":{"type":4},`,
		bpf.DatapathOutcomeFORWARD_STACK:  `"sub_type":2}`, // the destination is the host
		bpf.DatapathOutcomeFORWARD_TUNNEL: `"sub_type":4}`,
	} {
		e := packet(bpf.DatapathEventTypeEVENT_TRACE, protoUDP, "10.0.1.2:40000", "192.168.0.1:53")
		e.Outcome = uint8(outcome)
		expect(t, convert(t, e), want)
	}
}

// TestTranslated follows a connection to a Service both ways: its two ends stay the same.
func TestTranslated(t *testing.T) {
	there := packet(bpf.DatapathEventTypeEVENT_TRACE, protoTCP, "10.0.1.2:40000", "10.96.0.10:80")
	there.TcpFlags = tcpSYN
	there.XlatedSrc, there.XlatedSport = there.Src, there.Sport
	there.XlatedDst, there.XlatedDport = bpf.Addr(netip.MustParseAddr("10.0.2.3")), bpf.Port(8080)
	back := packet(bpf.DatapathEventTypeEVENT_TRACE, protoTCP, "10.0.2.3:8080", "10.0.1.2:40000")
	back.TcpFlags, back.Hook = tcpFIN|tcpACK, uint8(bpf.DatapathHookHOOK_FROM_WIRE)
	back.XlatedSrc, back.XlatedSport = there.Dst, there.Dport
	back.XlatedDst, back.XlatedDport = there.Src, there.Sport
	flows := convertAll(t, there, back)
	expect(t, flows[0], `"IP":{"source":"10.0.1.2","destination":"10.0.2.3"`, `"destination_port":8080`,
		`"destination_service":{"name":"web","namespace":"shop"}`, `"is_reply":false`)
	expect(t, flows[1], `"source":"10.0.2.3","source_xlated":"10.96.0.10","destination":"10.0.1.2"`, `"is_reply":true`,
		`"source_service":{"name":"web","namespace":"shop"}`, `"trace_reason":"REPLY"`, `"traffic_direction":"EGRESS"`)
}

func TestSocket(t *testing.T) {
	e := packet(bpf.DatapathEventTypeEVENT_SOCKET, protoTCP, "0.0.0.0:0", "10.96.0.10:80")
	e.XlatedDst, e.XlatedDport = bpf.Addr(netip.MustParseAddr("10.0.2.3")), bpf.Port(8080)
	e.Cookie, e.Cgroup, e.Netns = 77, 88, 99
	expect(t, convert(t, e), `"verdict":"TRANSLATED"`, `"Type":"SOCK"`, `"event_type":{"type":7,"sub_type":2}`,
		`"sock_xlate_point":"SOCK_XLATE_POINT_POST_DIRECTION_FWD"`, `"socket_cookie":"77"`, `"cgroup_id":"88"`,
		`"IP":{"source":"10.0.1.2","destination":"10.0.2.3"`, `"pod_name":"client"`,
		`"destination_service":{"name":"web","namespace":"shop"}`, `"traffic_direction":"EGRESS"`)
}

func TestAllowed(t *testing.T) {
	e := packet(bpf.DatapathEventTypeEVENT_FLOW_BEGIN, protoTCP, "10.0.2.3:40000", "10.0.1.2:80")
	e.Hook = uint8(bpf.DatapathHookHOOK_FROM_WIRE)
	e.Rule[bpf.DatapathPolicyDirectionPOLICY_INGRESS] = 5
	f := convert(t, e)
	expect(t, f, `"event_type":{"type":5}`, `"verdict":"FORWARDED"`, `"traffic_direction":"INGRESS"`,
		`"ingress_allowed_by":[{"name":"p","namespace":"shop","kind":"NetworkPolicy"}]`, `"is_reply":false`)
	if f.GetEgressAllowedBy() != nil || f.GetPolicyMatchType() == 0 {
		t.Error(f)
	}
}

func TestDenied(t *testing.T) {
	e := packet(bpf.DatapathEventTypeEVENT_DROP, protoTCP, "10.0.2.3:40000", "10.0.1.2:80")
	e.Outcome = uint8(bpf.DatapathOutcomeDROP_POLICY_DENIED)
	e.Denied = 1 + uint32(bpf.DatapathPolicyDirectionPOLICY_INGRESS)
	e.Rule[bpf.DatapathPolicyDirectionPOLICY_INGRESS] = 5
	expect(t, convert(t, e), `"verdict":"DROPPED"`, `"drop_reason_desc":"POLICY_DENY"`, `"drop_reason":181`,
		`"event_type":{"type":1,"sub_type":181}`, `"traffic_direction":"INGRESS"`,
		`"ingress_denied_by":[{"name":"p","namespace":"shop","kind":"NetworkPolicy"}]`,
		`policydenied:ingressdeniedbyNetworkPolicyshop/pspec.ingress[0]`)
	both := convertAll(t, e)
	if len(both) != 2 {
		t.Fatalf("%d flows, want the verdict and the drop", len(both))
	}
	expect(t, both[0], `"verdict":"DROPPED"`, `"drop_reason_desc":"POLICY_DENY"`, `"event_type":{"type":5}`,
		`"policy_match_type":2`, `"traffic_direction":"INGRESS"`,
		`"ingress_denied_by":[{"name":"p","namespace":"shop","kind":"NetworkPolicy"}]`)
	e.Type, e.Outcome = uint8(bpf.DatapathEventTypeEVENT_FLOW_BEGIN), 0
	e.Flags = uint16(bpf.DatapathEventFlagEVENT_AUDIT)
	expect(t, convert(t, e), `"verdict":"AUDIT"`, `"event_type":{"type":5}`,
		`"ingress_denied_by":[{"name":"p","namespace":"shop","kind":"NetworkPolicy"}]`)
}

// TestAllDropReasons: each has a number that Hubble knows, and its own name beside it.
func TestAllDropReasons(t *testing.T) {
	spec, err := bpf.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	var enum *btf.Enum
	if err := spec.Types.TypeByName("outcome", &enum); err != nil {
		t.Fatal(err)
	}
	names, seen := drop.NewNames(), 0
	for _, v := range enum.Values {
		if !strings.HasPrefix(v.Name, "DROP_") || v.Name == "DROP_FIRST" {
			continue
		}
		seen++
		e := packet(bpf.DatapathEventTypeEVENT_DROP, protoUDP, "10.0.1.2:1", "10.0.2.3:2")
		e.Outcome = uint8(v.Value)
		f := convert(t, e)
		if f.GetDropReasonDesc() < 130 || f.GetVerdict() != flowpb.Verdict_DROPPED {
			t.Errorf("%s: %v", v.Name, f.GetDropReasonDesc())
		}
		if text := names.Outcome(e.Outcome).Text(); !strings.Contains(f.GetSummary(), text) {
			t.Errorf("%s: %q doesn't say %q", v.Name, f.GetSummary(), text)
		}
		var more structpb.Struct
		if err := f.GetExtensions().UnmarshalTo(&more); err != nil || more.AsMap()["outcome"] != v.Name {
			t.Errorf("%s: %v %v", v.Name, &more, err)
		}
	}
	if seen < 40 {
		t.Errorf("only %d drop reasons", seen)
	}
	if r := dropReason(250); r != flowpb.DropReason_DROP_REASON_UNKNOWN {
		t.Error(r)
	}
}

func TestProtocols(t *testing.T) {
	for proto, want := range map[uint8]string{
		protoUDP:    `"l4":{"UDP":{"source_port":1,"destination_port":2}}`,
		protoSCTP:   `"l4":{"SCTP":{"source_port":1,"destination_port":2}}`,
		protoICMP:   `"l4":{"ICMPv4":{"type":8}}`,
		protoICMPv6: `"l4":{"ICMPv6":{"type":8}}`,
	} {
		e := packet(bpf.DatapathEventTypeEVENT_TRACE, proto, "10.0.1.2:1", "10.0.2.3:2")
		e.IcmpType = 8
		expect(t, convert(t, e), want)
	}
	other := &event.Raw{Type: uint8(bpf.DatapathEventTypeEVENT_DROP), Ethertype: bpf.Port(0x88cc),
		Outcome: uint8(bpf.DatapathOutcomeDROP_UNSUPPORTED_L2)}
	if f := convert(t, other); f.GetIP() != nil || f.GetL4() != nil || !strings.Contains(f.GetSummary(), "0x88cc") {
		t.Error(f)
	}
}
