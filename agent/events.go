package agent

import (
	"context"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"myelin/bpf"
	"myelin/drop"
	"myelin/event"
	"myelin/flow"
)

// startEvents makes what watches the datapath: the hub of events, the usage of
// maps, the collection of flows that are over.
func (a *Agent) startEvents(context.Context) error {
	a.hub = event.NewHub(a.log, a.datapath, drop.Counters{Cpus: a.datapath.Cpus}.LostEvents)
	a.usages = &bpf.Usages{Datapath: a.datapath, Now: time.Now}
	a.collector = flow.NewCollector(a.datapath, a.log)
	if a.config.BPF.Events.Trace {
		a.collector.Ended = a.hub.Publish
	}
	index := &flow.PortIndex{Datapath: a.datapath, Log: a.log}
	a.group.Add(
		job.OneShot("flows", func(ctx context.Context, _ cell.Health) error { return a.collector.Run(ctx) }),
		job.OneShot("port index", func(ctx context.Context, _ cell.Health) error { return index.Run(ctx) }),
	)
	return nil
}

// readyAfter is how long the start took, 0 before the agent is ready.
func (a *Agent) readyAfter() time.Duration { return time.Duration(a.ready.Load()) }
