package export

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/types/known/timestamppb"

	"myelin/hubble/consumer"
	"myelin/hubble/options"
)

// byVerdict compiles allow lists that have verdicts alone.
func byVerdict(allow, _ []*flowpb.FlowFilter) (consumer.Filter, error) {
	if len(allow) == 0 {
		return nil, nil
	}
	return func(f *flowpb.Flow) bool {
		for _, one := range allow {
			if slices.Contains(one.GetVerdict(), f.GetVerdict()) {
				return true
			}
		}
		return false
	}, nil
}

func params() Params {
	return Params{Log: slog.New(slog.DiscardHandler), Node: "n1", Compile: byVerdict, Stdout: io.Discard,
		Now: func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }}
}

func flow(id string) *flowpb.Flow {
	return &flowpb.Flow{Uuid: id, Verdict: flowpb.Verdict_FORWARDED, NodeName: "n1",
		Time:   timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)),
		Source: &flowpb.Endpoint{PodName: "a", Namespace: "x"}}
}

// run runs an exporter until it has done what a function gives it.
func run(t *testing.T, f *File, feed func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { f.Run(ctx) })
	feed()
	stop()
	group.Wait()
}

func TestFormat(t *testing.T) {
	var out bytes.Buffer
	p := params()
	p.Stdout = &out
	f, err := NewFile(options.File{Name: "a", Path: "stdout", Mask: []string{"time", "verdict", "node_name",
		"source.pod_name"}}, p)
	if err != nil {
		t.Fatal(err)
	}
	run(t, f, func() {
		f.Consume(flow("1"))
		f.Lost(&flowpb.LostEvent{Source: flowpb.LostEventSource_HUBBLE_RING_BUFFER, NumEventsLost: 3})
	})
	want := `{"flow":{"time":"2026-01-02T03:04:05.000000006Z","verdict":"FORWARDED","source":{"pod_name":"a"},` +
		`"node_name":"n1"},"node_name":"n1","time":"2026-01-02T03:04:05.000000006Z"}` + "\n" +
		`{"lost_events":{"source":"HUBBLE_RING_BUFFER","num_events_lost":"3"},"node_name":"n1",` +
		`"time":"2026-01-02T03:04:05Z"}` + "\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	if s := f.State(); s.Written != 1 || s.Lost != 0 || s.Err != nil {
		t.Errorf("state %+v", s)
	}
}

func TestSelection(t *testing.T) {
	var out bytes.Buffer
	p := params()
	p.Stdout = &out
	allow, err := options.Filters([]string{`{"verdict":["DROPPED"]}`})
	if err != nil {
		t.Fatal(err)
	}
	end := p.Now()
	f, err := NewFile(options.File{Path: "stdout", Allow: allow, Mask: []string{"uuid"}, End: end}, p)
	if err != nil {
		t.Fatal(err)
	}
	dropped := flow("2")
	dropped.Verdict = flowpb.Verdict_DROPPED
	run(t, f, func() {
		f.Consume(flow("1"))
		f.Consume(dropped)
		f.Now = func() time.Time { return end.Add(1) }
		f.Consume(dropped)
	})
	if got := out.String(); got != `{"flow":{"uuid":"2"}}`+"\n" {
		t.Errorf("got %s", got)
	}
	if !f.State().Ended {
		t.Error("has not ended")
	}
}

// TestRotation writes 3 MiB to files of one, and reads all flows again.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	f, err := NewFile(options.File{Path: dir + "/e.log", MaxSizeMB: 1, MaxBackups: 5, Compress: true}, params())
	if err != nil {
		t.Fatal(err)
	}
	const n = 6000
	text := strings.Repeat("x", 500)
	run(t, f, func() {
		for i := range n {
			one := flow(fmt.Sprint(i))
			one.DropReasonDesc, one.Source.ClusterName = flowpb.DropReason_POLICY_DENIED, text
			f.Consume(one)
		}
	})
	seen := map[string]bool{}
	// What is rotated is compressed by a goroutine that nothing waits for.
	for end := time.Now().Add(20 * time.Second); len(seen) < n && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
		seen = ids(t, dir)
	}
	packed, err := filepath.Glob(dir + "/e-*.log.gz")
	if len(seen) != n || err != nil || len(packed) < 3 {
		t.Errorf("%d flows of %d in %v, %v", len(seen), n, packed, err)
	}
	if s := f.State(); s.Written != n {
		t.Errorf("state %+v", s)
	}
}

// ids returns the IDs of all flows in the files of a directory, or nothing while a file is being created.
func ids(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, entry := range files {
		file, err := os.Open(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil
		}
		defer file.Close()
		var in io.Reader = file
		switch {
		case strings.HasSuffix(entry.Name(), ".gz"):
			if in, err = gzip.NewReader(file); err != nil {
				return nil
			}
		case entry.Name() != "e.log":
			return nil
		}
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			var line struct{ Flow struct{ UUID string } }
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
				t.Fatalf("%s: %s: %v", entry.Name(), lines.Text(), err)
			}
			seen[line.Flow.UUID] = true
		}
		if lines.Err() != nil {
			return nil
		}
	}
	return seen
}

func TestQueueLossIsWritten(t *testing.T) {
	var out bytes.Buffer
	p := params()
	p.Stdout = &out
	f, err := NewFile(options.File{Path: "stdout", Mask: []string{"uuid"}}, p)
	if err != nil {
		t.Fatal(err)
	}
	for range queueSize + 5 { // nothing runs yet
		f.Consume(flow("1"))
	}
	run(t, f, func() {})
	const want = `{"lost_events":{"source":"OBSERVER_EVENTS_QUEUE","num_events_lost":"5"}`
	if strings.Count(out.String(), want) != 1 || strings.Count(out.String(), "uuid") != queueSize {
		t.Errorf("no line %s, or not each flow that was queued", want)
	}
	if s := f.State(); s.Lost != 5 || s.Written != queueSize {
		t.Errorf("state %+v", s)
	}
}

// TestCannotWrite: the path leads through a file until that is gone.
func TestCannotWrite(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/d", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := NewFile(options.File{Path: dir + "/d/e.log", MaxSizeMB: 1}, params())
	if err != nil {
		t.Fatal(err)
	}
	f.write([]consumer.Item{{Flow: flow("1")}})
	if s := f.State(); s.Err == nil || !strings.Contains(s.Err.Error(), dir+"/d/e.log") || s.Lost != 1 {
		t.Errorf("state %+v, want an error that names the file, and one lost", s)
	}
	if err := os.Remove(dir + "/d"); err != nil {
		t.Fatal(err)
	}
	f.write([]consumer.Item{{Flow: flow("2")}})
	if s := f.State(); s.Err != nil || s.Written != 1 || s.Lost != 1 {
		t.Errorf("state %+v after the cause is gone", s)
	}
	if got := ids(t, dir+"/d"); len(got) != 1 || !got["2"] {
		t.Errorf("got %v", got)
	}
}
