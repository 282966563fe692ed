package bandwidth

import (
	"context"
	"fmt"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/endpoint"
	"myelin/route"
)

// maxEntries is the number of limits, of both directions.
const maxEntries = 16384

// Feature is bandwidth limits as a feature of the agent.
type Feature struct {
	*feature.Node
	// Devices and Endpoints are the node's; called when the feature starts.
	Devices   func() statedb.Table[*route.Device]
	Endpoints func() statedb.Table[*endpoint.Endpoint]

	manager *manager
}

// Feature returns the parts.
func (f *Feature) Feature() *feature.Feature {
	return &feature.Feature{
		Name: "bandwidth", Start: f.start, Stop: f.stop, Settings: f.settings, Entries: f.entries, Lists: f.lists,
		Counts: f.counts, Commands: commands(), Status: func() []feature.Status { return []feature.Status{f.status()} },
	}
}

func (f *Feature) on() bool { return f.Config.Bandwidth.Enabled }

func (f *Feature) settings(s *bpf.Settings) {
	if !f.on() {
		return
	}
	s.Bandwidth = 1
	if bpf.HaveDepartureTimes() {
		s.Edt = 1
	}
}

func (f *Feature) entries() map[string]uint32 {
	if f.on() {
		return map[string]uint32{"bandwidths": maxEntries}
	}
	return map[string]uint32{"bandwidths": 1}
}

func (f *Feature) start(context.Context) error {
	var err error
	f.manager, err = open(params{
		DB: f.DB, Log: f.Log, Group: f.Group, Options: f.Config.Bandwidth, EDT: f.Loaded.Edt != 0, Datapath: f.Datapath,
		Epochs: f.Epochs, Devices: f.Devices(), Endpoints: f.Endpoints(), Pods: f.Cluster.Pods,
		RunDir: f.Config.Myelin.RunDir, ProcSys: f.Config.Myelin.SysctlRoot,
	})
	return err
}

func (f *Feature) stop() error {
	if f.manager != nil {
		f.manager.close()
	}
	return nil
}

func (f *Feature) counts(txn statedb.ReadTxn) []feature.TableCount {
	return []feature.TableCount{
		feature.Count(txn, f.manager.limits, func(l *Limit) *reconciler.Status { return &l.Status }),
		feature.Count(txn, f.manager.qdiscs, func(q *Qdisc) *reconciler.Status { return &q.Status }),
		feature.Count(txn, f.manager.spaces, func(s *Space) *reconciler.Status { return &s.Status }),
	}
}

func (f *Feature) lists() map[string]feature.List {
	return map[string]feature.List{
		"bandwidth": {Header: (*view)(nil).TableHeader(), Each: func(yield func(feature.Row) bool) error {
			return f.manager.eachView(yield)
		}},
	}
}

// commands are those that show limits.
func commands() []feature.Command {
	return []feature.Command{
		{Name: "bandwidth", Short: "Inspect bandwidth limits of pods", Views: []feature.View{
			{Name: "list", Table: "bandwidth", Short: "List limits, and what pods take of them"},
			{Name: "qdiscs", Table: "qdiscs", Short: "List the devices whose packets wait for their departure times"},
			{Name: "congestion", Table: "congestion-control",
				Short: "List the network namespaces whose sockets use BBR or send small packets"},
		}},
	}
}

// status is the line of `myelin status`.
func (f *Feature) status() feature.Status {
	s := feature.Status{
		Name: "BandwidthManager", State: feature.Off, Wanted: "bandwidthManager.enabled: false", Chosen: "off",
		Why: "annotations of pods limit nothing",
	}
	if !f.on() {
		return s
	}
	txn := f.DB.ReadTxn()
	s.State, s.Wanted, s.Why = feature.OK, "bandwidthManager.enabled: true", "annotations of pods"
	s.Cost = "pods with a limit: an entry of the datapath for each packet"
	limits := statedb.Collect(f.manager.limits.All(txn))
	var wires, failing []string
	for q := range f.manager.qdiscs.All(txn) {
		if q.Status.Kind == reconciler.StatusKindError {
			failing = append(failing, q.Status.GetError())
		} else if q.Wire {
			wires = append(wires, q.Device)
		}
	}
	mode := fmt.Sprintf("EDT with BPF [%s]", strings.Join(wires, " "))
	if f.manager.usesBBR() {
		mode = fmt.Sprintf("EDT with BPF [BBR] [%s]", strings.Join(wires, " "))
	}
	if f.Loaded.Edt == 0 {
		mode = "policed"
		s.FallBack("what pods send is dropped beyond limits instead of waiting: the kernel does not keep departure " +
			"times of packets that are redirected (5.18 does)")
	}
	feature.First(failing, len(failing), func(why string) {
		s.FallBack("packets are dropped beyond limits instead of waiting: " + why)
	})
	lost := f.priorityProblems(txn, limits)
	feature.First(lost, len(lost), func(why string) { s.FallBack("priorities of pods do not apply: " + why) })
	s.Chosen = mode + ", " + feature.Plural(len(limits), "pod")
	bbrProblems := f.bbrProblems(txn)
	feature.First(bbrProblems, len(bbrProblems), s.Break)
	var problems []string
	for _, l := range limits {
		problems = append(problems, l.Problems...)
		if l.Status.Kind == reconciler.StatusKindError {
			problems = append(problems, l.Status.GetError())
		}
	}
	feature.First(problems, len(problems), s.Break)
	return s
}

// bbrProblems are why sockets do not use BBR.
func (f *Feature) bbrProblems(txn statedb.ReadTxn) (problems []string) {
	if f.Config.Bandwidth.BBR && f.Loaded.Edt == 0 {
		problems = append(problems, "bandwidthManager.bbr needs a kernel that keeps departure times of packets that "+
			"are redirected (5.18): sockets use what they used before")
	}
	for s := range f.manager.spaces.All(txn) {
		if s.Status.Kind == reconciler.StatusKindError {
			problems = append(problems, s.Status.GetError())
		}
	}
	return problems
}
