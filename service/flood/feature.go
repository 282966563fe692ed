// Package flood is the feature that limits what new flows to Services cost in a flood: it sets the datapath's rate of
// new flows by the room for NAT entries, and reports what the datapath did without them.
package flood

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/flow"
	"myelin/internal/ticker"
)

// interval is how often the rate follows the table.
const interval = time.Second

// minRate is the lowest automatic rate, in flows per second and CPU.
const minRate = 1000

type floods struct {
	*feature.Node
	shares func() *flow.Shares
}

// Feature returns the parts. shares returns those of the table of NAT entries; it is called when Services have started.
func Feature(n *feature.Node, shares func() *flow.Shares) *feature.Feature {
	f := &floods{Node: n, shares: shares}
	return &feature.Feature{
		Name: "floods", Start: f.start, Metrics: f.metrics,
		Status: func() []feature.Status { return []feature.Status{f.status()} },
	}
}

func (f *floods) start(context.Context) error {
	if f.Config.PerPacket() {
		f.Go("floods", f.run)
	}
	return nil
}

// run lets the rate follow the table until ctx ends.
func (f *floods) run(ctx context.Context) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count CPUs: %w", err)
	}
	tick := ticker.New()
	for {
		if err := f.adjust(cpus); err != nil {
			f.Log.Warn("the limit of new flows does not follow the table of NAT entries", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.Next(interval):
		}
	}
}

func (f *floods) adjust(cpus int) error {
	u, err := f.shares().Room()
	if err != nil {
		return err
	}
	rate := RateOf(f.Config.Myelin.NewFlowRate, u, cpus)
	if err := f.Datapath.NewFlowRate.Set(uint32(rate)); err != nil {
		return fmt.Errorf("set new_flow_rate: %w", err)
	}
	return nil
}

// RateOf is the rate that is configured or, if that is 0, as many flows as the free entries are enough for within a
// second, a sixteenth of all entries at least.
func RateOf(configured int, u flow.Usage, cpus int) int {
	if configured != 0 {
		return configured
	}
	return max(max(u.Max-u.Entries, u.Max/16)/cpus, minRate)
}

// counts are the datapath's, of all CPUs.
type counts struct{ evicted, stateless uint64 }

func (f *floods) counts() (counts, error) {
	var cpus []bpf.DatapathCpu
	if err := f.Datapath.Cpus.Lookup(uint32(0), &cpus); err != nil {
		return counts{}, fmt.Errorf("read the state of CPUs: %w", err)
	}
	var sum counts
	for i := range cpus {
		sum.evicted += cpus[i].NatEvicted
		sum.stateless += cpus[i].Stateless
	}
	return sum, nil
}

func (f *floods) metrics(s feature.Sink) {
	c, err := f.counts()
	if err != nil {
		f.Log.Warn("metrics of floods are not known", "error", err)
		return
	}
	var rate uint32
	if f.Config.PerPacket() && f.Datapath.NewFlowRate.Get(&rate) == nil {
		s.Gauge("myelin_new_flow_rate", "New flows a second and CPU that get NAT entries even if they need none.",
			float64(rate), nil)
	}
	s.Counter("myelin_nat_entries_evicted_total", "NAT entries that made room for those of new flows.",
		float64(c.evicted), nil)
	s.Counter("myelin_stateless_packets_total",
		"Packets that were forwarded without a NAT entry: of new flows above the rate, or without room.",
		float64(c.stateless), nil)
}

func (f *floods) status() feature.Status {
	if !f.Config.PerPacket() {
		return statusOf(f.Config.Myelin.NewFlowRate, 0, counts{}, nil)
	}
	var rate uint32
	c, err := f.counts()
	if err == nil {
		err = f.Datapath.NewFlowRate.Get(&rate)
	}
	return statusOf(f.Config.Myelin.NewFlowRate, rate, c, err)
}

// statusOf is the line of `myelin status`. rate is that of the datapath, 0 if it translates no packets.
func statusOf(configured int, rate uint32, c counts, err error) feature.Status {
	s := feature.Status{
		Name: "Floods", State: feature.Off, Chosen: "no limit", Why: "no packets are translated for Services",
		Wanted: "myelin.newFlowRate: automatic",
	}
	if configured != 0 {
		s.Wanted = fmt.Sprintf("myelin.newFlowRate: %d", configured)
	}
	if err != nil {
		s.State, s.Why = feature.Broken, err.Error()
		return s
	}
	if rate == 0 {
		return s
	}
	s.State = feature.OK
	s.Chosen = fmt.Sprintf("%d new flows a second and CPU get NAT entries", rate)
	s.Why = "above it, those with DSR and Maglev need none"
	if c.evicted+c.stateless > 0 {
		s.Chosen += fmt.Sprintf("; %d entries evicted, %s without an entry", c.evicted,
			feature.Plural(int(c.stateless), "packet"))
	}
	return s
}
