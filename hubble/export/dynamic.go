package export

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/hubble/consumer"
	"myelin/hubble/options"
)

// reread is how often the file of dynamic exporters is looked at, as with Cilium. A
// mounted ConfigMap changes by renaming, up to a minute after its object.
const reread = 5 * time.Second

// Dynamic is a consumer.Consumer: the exporters that a file lists, which is read
// again when it changes.
type Dynamic struct {
	params Params
	path   string

	running atomic.Pointer[[]*exporter]
	content []byte // that was read last; of Run

	mu  sync.Mutex
	err error // why the file is not followed
}

// exporter is a File that runs.
type exporter struct {
	*File
	stop context.CancelFunc
	done chan struct{}
}

// NewDynamic makes exporters of the file at path, which Run reads.
func NewDynamic(path string, p Params) *Dynamic {
	d := &Dynamic{params: p, path: path}
	d.running.Store(&[]*exporter{})
	return d
}

// Consume implements consumer.Consumer.
func (d *Dynamic) Consume(f *flowpb.Flow) {
	for _, e := range *d.running.Load() {
		e.Consume(f)
	}
}

// Lost implements consumer.Consumer.
func (d *Dynamic) Lost(l *flowpb.LostEvent) {
	for _, e := range *d.running.Load() {
		e.Lost(l)
	}
}

// States returns the states of the exporters, and the error that keeps the file from being watched, or nil.
func (d *Dynamic) States() (list []consumer.State, err error) {
	for _, e := range *d.running.Load() {
		list = append(list, e.State())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return list, d.err
}

// Run follows the file until ctx ends, and returns when all exporters have written what they had. A file that can't be
// read, or is wrong, leaves the exporters as they are.
func (d *Dynamic) Run(ctx context.Context) {
	ticker := time.NewTicker(reread)
	defer ticker.Stop()
	for {
		d.noteError(d.read())
		select {
		case <-ticker.C:
		case <-ctx.Done():
			d.apply(nil)
			return
		}
	}
}

func (d *Dynamic) noteError(err error) {
	d.mu.Lock()
	before := d.err
	d.err = err
	d.mu.Unlock()
	if err != nil && (before == nil || before.Error() != err.Error()) {
		d.params.Log.Error("exporters stay as they are", "error", err)
	}
}

func (d *Dynamic) read() error {
	content, err := os.ReadFile(d.path)
	if err != nil {
		return fmt.Errorf("read exporters: %w", err)
	}
	d.mu.Lock()
	failed := d.err != nil
	d.mu.Unlock()
	if d.content != nil && bytes.Equal(content, d.content) && !failed {
		return nil
	}
	files, err := options.Dynamic(content)
	if err != nil {
		return fmt.Errorf("read exporters of %s: %w", d.path, err)
	}
	if err := d.apply(files); err != nil {
		return fmt.Errorf("apply exporters of %s: %w", d.path, err)
	}
	d.content = content
	return nil
}

// apply makes the exporters equal to files. One that is as before goes on. What takes the place of another
// has it end first, for both may write to one file, and queues flows meanwhile.
func (d *Dynamic) apply(files []options.File) error {
	old := *d.running.Load()
	var next, started []*exporter
	for _, o := range files {
		at := slices.IndexFunc(old, func(e *exporter) bool { return reflect.DeepEqual(e.options, o) })
		if at >= 0 {
			next = append(next, old[at])
			continue
		}
		f, err := NewFile(o, d.params)
		if err != nil {
			return fmt.Errorf("%s: %w", o.Name, err)
		}
		e := &exporter{File: f, done: make(chan struct{})}
		next, started = append(next, e), append(started, e)
	}
	d.running.Store(&next)
	for _, e := range old {
		if !slices.Contains(next, e) {
			e.stop()
			<-e.done
		}
	}
	for _, e := range started {
		// Not of Run's context: the end of that is the end of the file's list, in order.
		ctx, stop := context.WithCancel(context.Background())
		e.stop = stop
		go func() {
			defer close(e.done)
			e.Run(ctx)
		}()
	}
	return nil
}
