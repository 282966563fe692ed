package mask

import (
	"strings"
	"testing"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/proto"
)

func flow() *flowpb.Flow {
	return &flowpb.Flow{
		Verdict: flowpb.Verdict_DROPPED, Uuid: "u",
		Source:      &flowpb.Endpoint{PodName: "a", Namespace: "x", Labels: []string{"l"}},
		SourceNames: []string{"n"},
		L4: &flowpb.Layer4{Protocol: &flowpb.Layer4_TCP{TCP: &flowpb.TCP{
			SourcePort: 1, DestinationPort: 2}}},
	}
}

func TestCut(t *testing.T) {
	m, err := New([]string{"source.pod_name", "verdict", "l4.TCP.destination_port", "destination.pod_name",
		"source_names", "source.labels"})
	if err != nil {
		t.Fatal(err)
	}
	want := &flowpb.Flow{
		Verdict: flowpb.Verdict_DROPPED, Source: &flowpb.Endpoint{PodName: "a", Labels: []string{"l"}},
		SourceNames: []string{"n"},
		L4:          &flowpb.Layer4{Protocol: &flowpb.Layer4_TCP{TCP: &flowpb.TCP{DestinationPort: 2}}},
	}
	in := flow()
	if got := m.Cut(in); !proto.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if !proto.Equal(in, flow()) {
		t.Errorf("the flow was changed: %v", in)
	}
}

func TestWholeAndPart(t *testing.T) {
	for _, paths := range [][]string{{"source", "source.pod_name"}, {"source.pod_name", "source"}} {
		m, err := New(paths)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Cut(flow()); got.GetSource().GetNamespace() != "x" || got.GetUuid() != "" {
			t.Errorf("%v: got %v", paths, got)
		}
	}
}

func TestAll(t *testing.T) {
	m, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	if f := flow(); m.Cut(f) != f {
		t.Error("a flow is copied for no reason")
	}
}

func TestRefused(t *testing.T) {
	for path, want := range map[string]string{
		"sourc": `"sourc": Flow has no field "sourc"`, "source.pod": `Endpoint has no field "pod"`,
		"verdict.x": "verdict has no fields", "source.labels.x": "source.labels has no fields", "": "no field",
	} {
		if _, err := New([]string{path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", path, err, want)
		}
	}
}
