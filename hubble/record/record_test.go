package record_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/protobuf/types/known/timestamppb"

	"myelin/hubble/record"
)

func flow(uuid string) *observerpb.GetFlowsResponse {
	at := timestamppb.New(time.Unix(1700000000, 5))
	return &observerpb.GetFlowsResponse{NodeName: "default/node1", Time: at,
		ResponseTypes: &observerpb.GetFlowsResponse_Flow{Flow: &flowpb.Flow{Uuid: uuid, Time: at,
			NodeName: "default/node1", IP: &flowpb.IP{Source: "10.0.1.2", Destination: "fd00::2"}}}}
}

func lost(n uint64) *observerpb.GetFlowsResponse {
	return &observerpb.GetFlowsResponse{NodeName: "default/node1",
		ResponseTypes: &observerpb.GetFlowsResponse_LostEvents{LostEvents: &flowpb.LostEvent{
			Source: flowpb.LostEventSource_HUBBLE_RING_BUFFER, NumEventsLost: n}}}
}

// written makes a recording of responses.
func written(t *testing.T, path string, appends bool, list ...*observerpb.GetFlowsResponse) *record.Writer {
	t.Helper()
	w, err := record.Create(path, appends)
	if err != nil {
		t.Fatal(err)
	}
	for _, res := range list {
		if err := w.Write(res); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// read returns the UUIDs of flows, and the gaps.
func read(t *testing.T, text string) (uuids, gaps string, err error) {
	t.Helper()
	err = record.Read(strings.NewReader(text), "x.json", func(res *observerpb.GetFlowsResponse) error {
		if res.GetFlow() != nil {
			uuids += res.GetFlow().GetUuid() + " "
		} else if gap := record.Gap(res); gap != "" {
			gaps += gap + "\n"
		}
		return nil
	})
	return uuids, gaps, err
}

// TestRecording: a file is replaced when a recording is closed, or grows.
func TestRecording(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows.json")
	if err := os.WriteFile(path, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := written(t, path, false, flow("a"), lost(7))
	if err := errors.Join(w.Interrupted("unix:///x", "it was restarted", time.Unix(1700000001, 0)),
		w.Resumed("unix:///x", time.Unix(1700000009, 0))); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(path); string(text) != "before" {
		t.Errorf("before it is closed the file has %q", text)
	}
	if err := w.Close(); err != nil || w.Flows != 1 || w.Gaps != 2 || w.Lost != 7 {
		t.Errorf("%v, %+v", err, w)
	}
	w = written(t, path, true, flow("b"))
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	uuids, gaps, err := read(t, string(text))
	if uuids != "a b " || err != nil || gaps != "7 events were lost by HUBBLE_RING_BUFFER on default/node1\n"+
		"unix:///x was away at 2023-11-14T22:13:21Z: it was restarted\n" {
		t.Errorf("%q, %q, %v", uuids, gaps, err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if list, _ := os.ReadDir(filepath.Dir(path)); len(list) != 1 {
		t.Errorf("files are left: %v", list)
	}
}

// TestBrokenOff: a line that an earlier recording broke off is one line that is no flow.
func TestBrokenOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows.json")
	if err := os.WriteFile(path, []byte(`{"flow":{"uu`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := written(t, path, true, flow("a")).Close(); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(path)
	uuids, _, err := read(t, string(text))
	var bad *record.Malformed
	if uuids != "a " || !errors.As(err, &bad) || bad.Lines != 1 || !strings.HasPrefix(err.Error(), "x.json:1: ") {
		t.Errorf("%q, %v", uuids, err)
	}
}

// TestOddLines: what is no flow is named, and doesn't stop the rest.
func TestOddLines(t *testing.T) {
	long := `{"flow":{"uuid":"` + strings.Repeat("x", 5<<20) + `"}}`
	text := "\n" + strings.Join([]string{`{"flow":{"uuid":"a","later_field":1}}`, "[]",
		`{"time":"2026-01-02T03:04:05Z","uuid":"b"}`, long, `{}`, `{"flow":{"uuid":"c"}}`}, "\n")
	uuids, _, err := read(t, text)
	if uuids != "a b c " || err == nil {
		t.Fatalf("%q, %v", uuids, err)
	}
	for _, want := range []string{"x.json:3: ", "x.json:5: longer than", "x.json:6: neither"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
}
