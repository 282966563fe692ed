package event_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"reflect"
	"testing"
	"time"

	apiv1 "myelin/api/v1"
	"myelin/bpf"
	"myelin/event"
)

func examples() []*event.Event {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	pod := event.Party{Addr: netip.MustParseAddr("10.0.1.2"), Port: 40000, Pod: "demo/client", Identity: 65536}
	pod6 := event.Party{Addr: netip.MustParseAddr("fd00:1::2"), Port: 40000, Pod: "demo/client", Identity: 65536}
	world := event.Party{Addr: netip.MustParseAddr("198.51.100.1"), Port: 80, Identity: 9}
	world6 := event.Party{Addr: netip.MustParseAddr("2001:db8::1"), Port: 80}
	return []*event.Event{
		{Time: at, Type: event.Drop, Hook: bpf.FromPod, Outcome: "DROP_NO_ROUTE", Reason: "no route", Src: pod,
			Dst:      world,
			Protocol: 6, EtherType: 0x800, TCPFlags: 2, Length: 74, Index: 3, Interface: "mye1", Endpoint: 2,
			SrcMAC: "02:00:00:00:00:01"},
		{Time: at, Type: event.Drop, Hook: bpf.FromPod, Outcome: "DROP_SPOOFED_MAC", Reason: "spoofed MAC", Src: pod6,
			Dst:      world6,
			Protocol: 17, EtherType: 0x86dd, Length: 100, Index: 3, SrcMAC: "02:00:00:00:00:09"},
		{Time: at, Type: event.Drop, Hook: bpf.FromPod, Outcome: "DROP_UNSUPPORTED_L2", Reason: "unsupported L2",
			EtherType: 0x88cc, Length: 60, Index: 3, Interface: "mye1", SrcMAC: "02:00:00:00:00:01"},
		{Time: at, Type: event.FlowBegin, Hook: bpf.FromPod, Src: pod6, Dst: world6, Protocol: 132, Length: 90,
			Index: 3, Interface: "mye1"},
		{Time: at, Type: event.FlowEnd, Reason: "expired", Src: pod, Dst: event.Party{Addr: world.Addr}, Protocol: 47},
		{Time: at, Type: event.FlowBegin, Hook: bpf.FromPod, Src: pod, Dst: world, Protocol: 6, Length: 74, Index: 3,
			Rules: event.Rules{Egress: "NetworkPolicy demo/client spec.egress[0] (manifests:p.yaml:9)"}},
		{Time: at, Type: event.Drop, Hook: bpf.FromPod, Outcome: "DROP_POLICY_NO_RULE", Reason: "policy no rule",
			Src: pod, Dst: world,
			Protocol: 6, TCPFlags: 2, Length: 74, Index: 3, Interface: "mye1", Denied: "egress",
			Policy: "no rule allowed egress: isolated by NetworkPolicy demo/client"},
		{Time: at, Type: event.Lost, Lost: 17},
	}
}

// TestText compares each event as a line of text and as JSON with what
// testdata has; `go test ./event -run Text -args update` writes it anew.
func TestText(t *testing.T) {
	var got bytes.Buffer
	for _, e := range examples() {
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		got.WriteString(e.String() + "\n" + string(data) + "\n\n")
	}
	const file = "testdata/events.txt"
	if flag.Arg(0) == "update" {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("got:\n%s\nwant:\n%s", got.Bytes(), want)
	}
}

func TestProtoRoundTrip(t *testing.T) {
	for _, e := range examples() {
		got := event.FromProto(e.ToProto())
		got.Time = got.Time.UTC()
		if !reflect.DeepEqual(got, e) {
			t.Errorf("got %+v, want %+v", got, e)
		}
	}
	if got := event.TypeFromProto(apiv1.EventType(99)); got != "" {
		t.Errorf("type 99 is %q", got)
	}
	if got := event.TypeToProto("nonsense"); got != apiv1.EventType_EVENT_TYPE_UNSPECIFIED {
		t.Errorf("nonsense is %s", got)
	}
}

func TestTCPFlags(t *testing.T) {
	for flags, want := range map[event.TCPFlags]string{0: "", 1: "F", 2: "S", 0x12: "S.", 0x18: "P.",
		0xff: "FSRP.UEW"} {
		if got := flags.String(); got != want {
			t.Errorf("%#x: %q, want %q", uint8(flags), got, want)
		}
	}
}

// TestDecodeOfAnotherDatapath: numbers that this program doesn't know must
// not confuse it.
func TestDecodeOfAnotherDatapath(t *testing.T) {
	d := event.NewDecoder(fixed{}, time.Unix(0, 0))
	e := d.Decode(&event.Raw{Type: 200, Hook: 200, Outcome: 200})
	if e.Type != "" || e.Hook != "" || e.Reason != "" || e.Src.Pod != "" {
		t.Errorf("%+v", e)
	}
	if e := d.Decode(&event.Raw{Outcome: 200}); e.Outcome != "OUTCOME_200" {
		t.Errorf("%+v", e)
	}
}
