package observer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/agent/feature"
	"myelin/cluster"
	"myelin/hubble/consumer"
	"myelin/hubble/export"
	"myelin/hubble/export/ipfix"
	"myelin/hubble/export/otlp"
	"myelin/hubble/filter"
	hubblemetrics "myelin/hubble/metrics"
	"myelin/hubble/options"
	"myelin/internal/table"
)

// forgetAfter is how long the series of a pod outlive it: its last flows are read after its end.
const forgetAfter = time.Minute

// consumers has the consumers of all flows: metrics and exporters.
type consumers struct {
	*Observer
	metrics   *hubblemetrics.Metrics // nil: off
	exporters []consumer.Exporter
	dynamic   *export.Dynamic // nil: off
	consumers []consumer.Consumer
	problems  []error // exporters that can't be made
	stopping  context.CancelFunc
	running   sync.WaitGroup
}

// Consumers returns the parts of what takes all flows: metrics and exporters. They start after Feature.
func (h *Observer) Consumers() *feature.Feature {
	x := &consumers{Observer: h}
	return &feature.Feature{Name: "exporters of flows", Start: x.start, Stop: x.stop,
		Status: func() []feature.Status { return []feature.Status{x.status()} }}
}

// start makes what is configured. An exporter that can't be made is reported by the status: pods have their network
// without it.
func (x *consumers) start(context.Context) error {
	if x.observer == nil {
		return nil
	}
	if err := x.startMetrics(); err != nil {
		return err
	}
	// Not of the agent's jobs: exporters write what they have after these have ended.
	ctx, stop := context.WithCancel(context.Background())
	x.stopping = stop
	x.startExporters(ctx)
	if len(x.consumers) > 0 {
		x.Go("hubble-follow", func(ctx context.Context) error { return x.observer.Follow(ctx, x.consumers) })
	}
	return nil
}

func (x *consumers) startMetrics() error {
	c := &x.Config.Hubble.Metrics
	if len(c.Enabled) == 0 {
		return nil
	}
	list, err := options.Metrics(c.Enabled)
	if err != nil {
		return fmt.Errorf("hubble.metrics.enabled: %w", err)
	}
	x.metrics = hubblemetrics.New(hubblemetrics.Params{
		Metrics: list, MaxSeries: c.MaxSeries, OpenMetrics: c.OpenMetrics,
	})
	if err := x.metrics.Register(consumer.Collector(x.states)); err != nil {
		return fmt.Errorf("register metrics of exporters: %w", err)
	}
	x.consumers = append(x.consumers, x.metrics)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", x.metrics.Handler(x.Log))
	x.Serve("hubble-metrics", []string{c.Address}, c.Port, mux)
	x.Go("hubble-metrics-pods", x.forget)
	return nil
}

func (x *consumers) startExporters(ctx context.Context) {
	c := &x.Config.Hubble.Export
	node := x.Config.Myelin.NodeName
	params := export.Params{Log: x.Log, Node: node, Compile: compileFilters, Now: time.Now, Stdout: os.Stdout}
	if c.Static {
		f, err := x.static(params)
		x.add("static", f, err, func() { f.Run(ctx) })
	}
	if c.Dynamic {
		x.dynamic = export.NewDynamic(c.DynamicPath, params)
		x.consumers = append(x.consumers, x.dynamic)
		x.running.Go(func() { x.dynamic.Run(ctx) })
	}
	if c.OTLPEndpoint != "" {
		e, err := otlp.New(otlp.Params{Endpoint: c.OTLPEndpoint, Insecure: c.OTLPInsecure, Node: node, Log: x.Log})
		x.add("otlp", e, err, func() { e.Run(ctx) })
	}
	if c.IPFIX != "" {
		e, err := ipfix.New(ipfix.Params{Collector: c.IPFIX, TemplateInterval: c.IPFIXInterval, Node: node,
			Log: x.Log, Now: time.Now})
		x.add("ipfix", e, err, func() { e.Run(ctx) })
	}
}

func (x *consumers) add(name string, e consumer.Exporter, err error, run func()) {
	if err != nil {
		x.problems = append(x.problems, fmt.Errorf("exporter %s: %w", name, err))
		x.Log.Error("an exporter of flows is not started", "exporter", name, "error", err)
		return
	}
	x.exporters, x.consumers = append(x.exporters, e), append(x.consumers, e)
	x.running.Go(run)
}

func (x *consumers) static(p export.Params) (*export.File, error) {
	c := &x.Config.Hubble.Export
	allow, err := options.Filters(c.AllowList)
	if err != nil {
		return nil, fmt.Errorf("hubble.export.static.allowList: %w", err)
	}
	deny, err := options.Filters(c.DenyList)
	if err != nil {
		return nil, fmt.Errorf("hubble.export.static.denyList: %w", err)
	}
	return export.NewFile(options.File{Name: "static", Path: c.FilePath, Mask: c.FieldMask, Allow: allow, Deny: deny,
		MaxSizeMB: c.FileMaxSizeMB, MaxBackups: c.FileMaxFiles, Compress: c.FileCompress}, p)
}

// compileFilters is a consumer.Compile.
func compileFilters(allow, deny []*flowpb.FlowFilter) (consumer.Filter, error) {
	match, err := filter.Compile(allow, deny)
	return consumer.Filter(match), err
}

// forget deletes the series of pods that are gone.
func (x *consumers) forget(ctx context.Context) error {
	txn := x.DB.WriteTxn(x.Cluster.Pods)
	changes, err := x.Cluster.Pods.Changes(txn)
	txn.Commit()
	if err != nil {
		return fmt.Errorf("follow pods: %w", err)
	}
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		pods, more := changes.Next(x.DB.ReadTxn())
		for c := range pods {
			if c.Deleted {
				time.AfterFunc(forgetAfter, func() { x.forgetPod(c.Object) })
			}
		}
		w.Add(more)
		return nil
	})
}

// forgetPod forgets a pod, unless there is one of its name again.
func (x *consumers) forgetPod(p *cluster.Pod) {
	for other := range x.Cluster.Pods.All(x.DB.ReadTxn()) {
		if other.Namespace == p.Namespace && other.Name == p.Name {
			return
		}
	}
	x.metrics.Forget(p.Namespace, p.Name)
}

func (x *consumers) stop() error {
	if x.stopping != nil {
		x.stopping()
		x.running.Wait()
	}
	return nil
}

// states returns the states of all running exporters.
func (x *consumers) states() (list []consumer.State) {
	for _, e := range x.exporters {
		list = append(list, e.State())
	}
	if x.dynamic != nil {
		more, _ := x.dynamic.States()
		list = append(list, more...)
	}
	return list
}

// status is the line of `myelin status`.
func (x *consumers) status() feature.Status {
	s := feature.Status{Name: "Hubble exporters", State: feature.Off, Chosen: "off"}
	if len(x.consumers) == 0 && len(x.problems) == 0 {
		return s
	}
	s.State = feature.OK
	states := x.states()
	s.Chosen = fmt.Sprintf("%d metrics, %d exporters", len(x.Config.Hubble.Metrics.Enabled), len(states))
	problems := slices.Clone(x.problems)
	for _, state := range states {
		if state.Err != nil {
			problems = append(problems, fmt.Errorf("exporter %s: %w", state.Name, state.Err))
		}
	}
	if x.dynamic != nil {
		if _, err := x.dynamic.States(); err != nil {
			problems = append(problems, err)
		}
	}
	if err := errors.Join(problems...); err != nil {
		s.Break(err.Error())
	}
	return s
}
