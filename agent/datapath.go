package agent

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/bpf/hooks"
	"myelin/bpf/probe"
	"myelin/drop"
	"myelin/event"
	"myelin/service"
)

// datapath is the features datapath and events: the programs, their maps, and
// what watches them.
type datapath struct {
	*feature.Node
	features func() []*feature.Feature
	services *services

	memory func() (uint64, error) // of the node, in bytes
	load   func(bpf.Options) (*bpf.Datapath, error)
	growth growth
	// again: it was loaded before in this process. need are rows that maps must have room for, by map: those that the
	// life before was refused.
	again bool
	need  map[string]int

	hub    *event.Hub
	usages *bpf.Usages
}

func (d *datapath) feature() *feature.Feature {
	return &feature.Feature{
		Name: "datapath", Start: d.start, Stop: d.stop, Settings: d.settings, Lists: d.lists, Metrics: d.metrics,
		Checks: slices.Concat(probe.Checks(), hooks.Checks(hookNames())), Commands: d.commands(),
	}
}

// hookNames are the names of the programs on devices.
func hookNames() []string {
	return []string{string(bpf.FromPod), string(bpf.ToPod), string(bpf.FromWire), string(bpf.ToWire)}
}

func (d *datapath) eventsFeature() *feature.Feature {
	return &feature.Feature{Name: "events", Start: d.startEvents, Metrics: d.eventMetrics}
}

// start loads the programs with the settings and map sizes of all features.
func (d *datapath) start(context.Context) error {
	entries := map[string]uint32{}
	for _, f := range d.features() {
		if f.Settings != nil {
			f.Settings(&d.Loaded)
		}
		if f.Entries != nil {
			maps.Copy(entries, f.Entries())
		}
	}
	var listen bpf.DatapathListen
	if d.Config.Hubble.Enabled {
		listen = bpf.DatapathListenLISTEN_TRACE
	}
	sizes, err := d.sizes()
	if err != nil {
		return err
	}
	err = d.loadGrown(bpf.Options{
		Settings: d.Loaded, Sizes: sizes, Entries: entries, Listen: listen,
		Grow: d.Config.GrowsMaps(), Keep: d.again, Need: d.need, DistributedLRU: d.Config.BPF.DistributedLRU,
		Dir: d.dir(), NoTCX: !d.Config.BPF.EnableTCX,
	})
	if err != nil {
		return err
	}
	d.Epochs = &bpf.Epochs{Map: d.Datapath.Epochs}
	return nil
}

func (d *datapath) stop() error {
	if d.Datapath == nil {
		return nil
	}
	return d.Datapath.Close()
}

func (d *datapath) settings(s *bpf.Settings) {
	c := d.Config
	s.Ipv4, s.Ipv6, s.LegacyRouting = flag(c.IPv4.Enabled), flag(c.IPv6.Enabled), flag(c.BPF.HostLegacyRouting)
	s.Masquerade4, s.Masquerade6 = flag(c.Masquerades(false)), flag(c.Masquerades(true))
	s.FlowAlways, s.Monitor, s.EventRate = flag(c.TracksAllFlows()), flag(c.Events.Trace), d.eventRate()
	s.TraceAll, s.TraceSeconds = flag(c.Events.Aggregation == "none"), uint32(c.Events.Interval.Seconds())
	s.TraceRate = d.traceRate()
	s.NoVerdicts = flag(!c.Events.PolicyVerdict)
	burst := uint32(min(c.Events.BurstLimit, unlimited))
	s.EventBurst, s.TraceBurst = burst, burst
	if c.Events.Trace && c.Hubble.Enabled {
		s.TraceSlots = bpf.TraceSlots(c.Hubble.Capacity())
	} else if c.Events.Trace {
		s.TraceSlots = bpf.TraceSlots(0)
	}
}

func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// unlimited is as good as no limit: more events a second and CPU than the ring
// buffer can take.
const unlimited = 1 << 30

func (d *datapath) eventRate() uint32 {
	e := d.Config.Events
	switch {
	case !e.Drop:
		return 0
	case e.RateLimit == 0:
		return defaultEventRate
	default:
		return uint32(min(e.RateLimit, unlimited))
	}
}

// defaultEventRate bounds what a flood of drops costs, in events a second and
// CPU; counters stay exact.
const defaultEventRate = 10000

// defaultTraceRate bounds what a flood of new flows costs, in events a second
// and CPU: each takes the CPU well below a microsecond.
const defaultTraceRate = 100000

func (d *datapath) traceRate() uint32 {
	if limit := d.Config.Events.RateLimit; limit != 0 {
		return uint32(min(limit, unlimited))
	}
	return defaultTraceRate
}

// tablesEach is how many rows of Maglev tables there may be for each of
// bpf.lbMapMax: 17 is a table of 10 backends. A row that is not in use costs 16
// bytes.
const tablesEach = 4

// sizes are those of the maps. What conntrack and NAT entries have is their start; the limit is in d.growth.
func (d *datapath) sizes() (bpf.Sizes, error) {
	memory, err := d.memory()
	if err != nil && d.Config.BPF.MapDynamicSizeRatio > 0 {
		return bpf.Sizes{}, fmt.Errorf("size maps by bpf.mapDynamicSizeRatio: %w", err)
	}
	flows, paths := bpf.EntryBytes(d.Loaded.Services != 0)
	dynamic := d.Config.Sizes(memory, flows, paths)
	s := bpf.Sizes{Flows: uint32(dynamic.Flows), Paths: uint32(dynamic.Paths)}
	if d.Config.Services() {
		s.Services = uint32(d.Config.LoadBalancer.MapMax)
	}
	if d.Config.Services() && (d.Config.LoadBalancer.Algorithm == string(service.Maglev) ||
		!d.services.serviceConfig().FixedAlgorithm) {
		s.MaglevTables = tablesEach * s.Services
	}
	limit, by := d.Config.FlowLimit(memory, dynamic.Flows, flows)
	s.Flows = uint32(d.Config.FlowLRUStart(limit, dynamic.Flows))
	s.Translations = uint32(d.Config.FlowStart(limit, dynamic.Flows))
	d.growth = growth{limit: limit, by: by}
	s.Peers = uint32(d.Config.Policy.PeersMax)
	s.PeerClasses, s.Verdicts = uint32(d.Config.Policy.MapMax), uint32(d.Config.Policy.MapMax)
	return s, nil
}

// dir is where the datapath's maps are pinned.
func (d *datapath) dir() string { return filepath.Join(d.Config.Myelin.BPFRoot, "myelin") }

// memory is how many bytes of memory the node has.
func memory() (uint64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("read the node's memory: %w", err)
	}
	return uint64(info.Totalram) * uint64(info.Unit), nil
}

// startEvents creates the hub of events and the usage of maps.
func (d *datapath) startEvents(context.Context) error {
	d.hub = event.NewHub(d.Log, d.Datapath, drop.Counters{Cpus: d.Datapath.Cpus}.LostEvents)
	d.usages = &bpf.Usages{Datapath: d.Datapath, Now: time.Now}
	return nil
}
