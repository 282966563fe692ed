// Package record writes flows to files and reads them: lines of JSON, as `hubble observe -o jsonpb` prints them and
// `hubble observe --input-file` reads them.
package record

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	relaypb "github.com/cilium/cilium/api/v1/relay"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Writer writes responses of an observer to a file. What is missing is a line of its own: lost events, and nodes that
// are away.
type Writer struct {
	path    string
	file    *os.File
	buffer  *bufio.Writer
	appends bool

	Flows, Lost uint64
	Gaps        int       // lines about what is missing
	Last        time.Time // of the flows
	node        string    // that reported last
}

// Create begins a recording. What is at path is replaced by Close, or with appends goes on at once: then each flush is
// seen by readers.
func Create(path string, appends bool) (*Writer, error) {
	var f *os.File
	var err error
	if appends {
		f, err = os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
		if err == nil {
			err = endLine(f)
		}
	} else {
		f, err = os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	}
	if err != nil {
		return nil, fmt.Errorf("record to %s: %w", path, err)
	}
	return &Writer{path: path, file: f, buffer: bufio.NewWriterSize(f, 64<<10), appends: appends}, nil
}

// endLine ends a line that an earlier recording broke off.
func endLine(f *os.File) error {
	size, err := f.Seek(0, 2)
	if err != nil || size == 0 {
		return nil // a pipe, or empty
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, size-1); err != nil || last[0] == '\n' {
		return err
	}
	_, err = f.WriteString("\n")
	return err
}

// Write writes a response.
func (w *Writer) Write(res *observerpb.GetFlowsResponse) error {
	switch {
	case res.GetFlow() != nil:
		w.Flows++
		w.node = res.GetFlow().GetNodeName()
		if at := res.GetFlow().GetTime(); at.IsValid() && at.AsTime().After(w.Last) {
			w.Last = at.AsTime()
		}
	case res.GetLostEvents() != nil:
		w.Gaps++
		w.Lost += res.GetLostEvents().GetNumEventsLost()
	case res.GetNodeStatus() != nil:
		if away(res.GetNodeStatus().GetStateChange()) {
			w.Gaps++
		}
	default:
		return nil
	}
	if err := json.NewEncoder(w.buffer).Encode(res); err != nil {
		return fmt.Errorf("record to %s: %w", w.path, err)
	}
	return nil
}

func away(s relaypb.NodeState) bool {
	return s == relaypb.NodeState_NODE_UNAVAILABLE || s == relaypb.NodeState_NODE_ERROR
}

// Interrupted writes that the observer is away since a time, and why.
func (w *Writer) Interrupted(observer, why string, at time.Time) error {
	return w.observer(observer, relaypb.NodeState_NODE_UNAVAILABLE, why, at)
}

// Resumed writes that the observer is there again.
func (w *Writer) Resumed(observer string, at time.Time) error {
	return w.observer(observer, relaypb.NodeState_NODE_CONNECTED, "the recording goes on", at)
}

func (w *Writer) observer(name string, state relaypb.NodeState, why string, at time.Time) error {
	return w.Write(&observerpb.GetFlowsResponse{NodeName: w.node, Time: timestamppb.New(at),
		ResponseTypes: &observerpb.GetFlowsResponse_NodeStatus{NodeStatus: &relaypb.NodeStatusEvent{
			StateChange: state, NodeNames: []string{name}, Message: why}}})
}

// Flush lets readers of a file that is appended to see what was written.
func (w *Writer) Flush() error {
	if err := w.buffer.Flush(); err != nil {
		return fmt.Errorf("record to %s: %w", w.path, err)
	}
	return nil
}

// Close ends the recording: its file is whole, or, if err is not nil, an error says where it is.
func (w *Writer) Close() error {
	err := errors.Join(w.Flush(), w.file.Sync())
	if w.special() {
		err = w.Flush()
	}
	err = errors.Join(err, w.file.Close())
	if !w.appends {
		if err == nil {
			err = os.Rename(w.file.Name(), w.path)
		}
		if err != nil {
			err = errors.Join(err, os.Remove(w.file.Name()))
		}
	}
	if err != nil {
		return fmt.Errorf("record to %s: %w", w.path, err)
	}
	return nil
}

// Discard ends a recording that is no good, without a file.
func (w *Writer) Discard() error { return errors.Join(w.file.Close(), os.Remove(w.file.Name())) }

// special reports whether the file is a pipe or a device, which can't be synced.
func (w *Writer) special() bool {
	info, err := w.file.Stat()
	return err == nil && !info.Mode().IsRegular()
}

// Gap is the text of a response that says what is missing; empty for others.
func Gap(res *observerpb.GetFlowsResponse) string {
	at := ""
	if res.GetTime().IsValid() {
		at = " at " + res.GetTime().AsTime().Format(time.RFC3339)
	}
	switch {
	case res.GetLostEvents() != nil:
		l := res.GetLostEvents()
		text := "1 event was lost"
		if n := l.GetNumEventsLost(); n != 1 {
			text = fmt.Sprintf("%d events were lost", n)
		}
		if l.GetSource() != flowpb.LostEventSource_UNKNOWN_LOST_EVENT_SOURCE {
			text += " by " + l.GetSource().String()
		}
		if res.GetNodeName() != "" {
			text += " on " + res.GetNodeName()
		}
		return text + at
	case res.GetNodeStatus() != nil && away(res.GetNodeStatus().GetStateChange()):
		s := res.GetNodeStatus()
		text := strings.Join(s.GetNodeNames(), ", ") + " was away" + at
		if s.GetMessage() != "" {
			text += ": " + s.GetMessage()
		}
		return text
	}
	return ""
}
