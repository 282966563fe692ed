// Package export writes flows to files, as JSON in the form of Hubble's exporter.
package export

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/protobuf/types/known/timestamppb"
	"gopkg.in/natefinch/lumberjack.v2"

	"myelin/hubble/consumer"
	"myelin/hubble/mask"
	"myelin/hubble/options"
)

// Bounds of what a file exporter holds: flows in its queue, flows of one write, and how long a flow waits for others.
const (
	queueSize = 8192
	batchSize = 256
	batchWait = 200 * time.Millisecond
)

// Params are common to all file exporters.
type Params struct {
	Log     *slog.Logger
	Node    string // the node's name, for events that are not flows
	Compile consumer.Compile
	Now     func() time.Time
	Stdout  io.Writer // where the path "stdout" leads
}

// File is a consumer.Exporter that writes a line for each flow that it selects.
type File struct {
	Params
	options options.File
	mask    *mask.Mask
	queue   *consumer.Queue
	out     io.Writer
	close   func() error

	progress consumer.Progress
	dropped  uint64 // of the queue's, as far as the file has reported them
	torn     bool   // the last line was not written to its end
}

// NewFile makes an exporter, which writes while Run runs. The file is opened by
// the first write. The error names the field of the options.
func NewFile(o options.File, p Params) (*File, error) {
	fields, err := mask.New(o.Mask)
	if err != nil {
		return nil, fmt.Errorf("fieldMask: %w", err)
	}
	selects, err := p.Compile(o.Allow, o.Deny)
	if err != nil {
		return nil, fmt.Errorf("filters: %w", err)
	}
	f := &File{Params: p, options: o, mask: fields}
	f.queue = consumer.NewQueue(queueSize, func(flow *flowpb.Flow) bool {
		return !f.ended() && (selects == nil || selects(flow))
	})
	if o.Path == "stdout" {
		f.out, f.close = p.Stdout, func() error { return nil }
	} else {
		log := &lumberjack.Logger{Filename: o.Path, MaxSize: o.MaxSizeMB, MaxBackups: o.MaxBackups,
			Compress: o.Compress}
		f.out, f.close = log, log.Close
	}
	return f, nil
}

func (f *File) ended() bool { return !f.options.End.IsZero() && f.Now().After(f.options.End) }

// Consume implements consumer.Consumer.
func (f *File) Consume(flow *flowpb.Flow) { f.queue.Consume(flow) }

// Lost implements consumer.Consumer.
func (f *File) Lost(l *flowpb.LostEvent) {
	if !f.ended() {
		f.queue.Lost(l)
	}
}

// State implements consumer.Exporter.
func (f *File) State() consumer.State {
	s := f.progress.State(f.options.Name, f.options.Path, f.queue)
	s.Ended = f.ended()
	return s
}

// Run writes until ctx ends and what was consumed by then is written.
func (f *File) Run(ctx context.Context) {
	f.queue.Run(ctx, batchSize, batchWait, f.write)
	if err := f.close(); err != nil {
		f.Log.Warn("the file of an exporter is not closed", "exporter", f.options.Name, "error", err)
	}
}

func (f *File) write(items []consumer.Item) {
	var text bytes.Buffer
	if f.torn {
		text.WriteByte('\n')
	}
	lines, flows := json.NewEncoder(&text), 0
	for _, i := range items {
		event := f.event(i)
		if i.Flow != nil {
			flows++
		}
		if err := lines.Encode(event); err != nil {
			f.failed(flows, fmt.Errorf("encode a flow: %w", err))
			return
		}
	}
	if now := f.queue.Dropped(); now > f.dropped {
		event := f.event(consumer.Item{Lost: &flowpb.LostEvent{
			Source: flowpb.LostEventSource_OBSERVER_EVENTS_QUEUE, NumEventsLost: now - f.dropped}})
		f.dropped = now
		if err := lines.Encode(event); err != nil {
			f.failed(flows, fmt.Errorf("encode lost events: %w", err))
			return
		}
	}
	n, err := f.out.Write(text.Bytes())
	if err != nil {
		f.torn = f.torn && n == 0 || n > 0
		f.failed(flows, fmt.Errorf("write to %s: %w", f.options.Path, err))
		return
	}
	f.torn = false
	if f.progress.Wrote(flows) {
		f.Log.Info("flows are exported again", "exporter", f.options.Name)
	}
}

func (f *File) failed(flows int, err error) {
	if f.progress.Failed(flows, err) {
		f.Log.Error("flows are not exported", "exporter", f.options.Name, "error", err)
	}
}

// event returns the line that Hubble's exporter writes for an item.
func (f *File) event(i consumer.Item) *observerpb.ExportEvent {
	if i.Flow == nil {
		return &observerpb.ExportEvent{NodeName: f.Node, Time: timestamppb.New(f.Now()),
			ResponseTypes: &observerpb.ExportEvent_LostEvents{LostEvents: i.Lost}}
	}
	cut := f.mask.Cut(i.Flow)
	return &observerpb.ExportEvent{NodeName: cut.GetNodeName(), Time: cut.GetTime(),
		ResponseTypes: &observerpb.ExportEvent_Flow{Flow: cut}}
}
