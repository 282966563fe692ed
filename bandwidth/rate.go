package bandwidth

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"myelin/agent/feature"
	"myelin/bpf"
)

// sampleEvery is the time between two readings of counters, from which rates are computed.
const sampleEvery = 2 * time.Second

// sample is what a counter was at a time, and the rate since the one before.
type sample struct {
	bytes uint64
	at    time.Duration
	rate  uint64 // bit/s
}

// sample reads the counters until ctx ends.
func (m *manager) sample(ctx context.Context, _ cell.Health) error {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		if m.limits.NumObjects(m.DB.ReadTxn()) > 0 {
			if err := m.readRates(); err != nil {
				return err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (m *manager) readRates() error {
	now, next := monotonic(), map[bpf.DatapathBandwidthKey]sample{}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := bpf.Each(m.Datapath.Bandwidths, func(key *bpf.DatapathBandwidthKey, b *bpf.DatapathBandwidth) bool {
		s := sample{bytes: b.Sent.Bytes, at: now}
		if old, ok := m.rates[*key]; ok && s.bytes >= old.bytes && now > old.at {
			s.rate = uint64(float64(s.bytes-old.bytes) * 8 / (now - old.at).Seconds())
		}
		next[*key] = s
		return true
	})
	if err != nil {
		return fmt.Errorf("read bandwidths: %w", err)
	}
	m.rates = next
	return nil
}

// rateText writes bit/s as annotations do.
func rateText(rate uint64) string {
	if rate == 0 {
		return "-"
	}
	for _, unit := range []struct {
		name string
		size float64
	}{{"G", 1e9}, {"M", 1e6}, {"k", 1e3}} {
		if n := float64(rate) / unit.size; n >= 1 {
			text := strconv.FormatFloat(n, 'f', 2, 64)
			return strings.TrimSuffix(strings.TrimRight(text, "0"), ".") + unit.name
		}
	}
	return strconv.FormatUint(rate, 10)
}

// view is a row of `myelin bandwidth list`: a direction of an endpoint.
type view struct {
	ID             uint16 `json:"id"`
	Pod            string `json:"pod"`
	Direction      string `json:"direction"`
	Limit          uint64 `json:"limit"` // bit/s
	Rate           uint64 `json:"rate"`  // bit/s
	Priority       string `json:"priority,omitempty"`
	Mode           string `json:"mode,omitempty"`
	Packets        uint64 `json:"packets"`
	DroppedPackets uint64 `json:"droppedPackets"`
	DroppedBytes   uint64 `json:"droppedBytes"`
	Status         string `json:"status"`
}

func (*view) TableHeader() []string {
	return []string{"Pod", "Direction", "Limit", "Rate", "Priority", "Mode", "Packets", "Dropped", "Status"}
}

func (v *view) TableRow() []string {
	return []string{v.Pod, v.Direction, rateText(v.Limit), rateText(v.Rate), cmp.Or(v.Priority, "-"), v.Mode,
		strconv.FormatUint(v.Packets, 10), strconv.FormatUint(v.DroppedPackets, 10), v.Status}
}

// eachView reads the rows with what the datapath has counted.
func (m *manager) eachView(yield func(feature.Row) bool) error {
	limits := statedb.Collect(m.limits.All(m.DB.ReadTxn()))
	slices.SortFunc(limits, func(a, b *Limit) int { return strings.Compare(a.Pod, b.Pod) })
	for _, l := range limits {
		for _, v := range l.views() {
			m.measure(v)
			if !yield(v) {
				return nil
			}
		}
	}
	return nil
}

// views are the directions of the row. One without a limit is shown if nothing else tells of the row's problems.
func (l *Limit) views() (views []*view) {
	status := l.Status.Kind.String()
	if l.Status.Kind == reconciler.StatusKindError {
		status = l.Status.GetError()
	}
	if len(l.Problems) > 0 {
		status = strings.Join(l.Problems, "; ")
	}
	add := func(direction string, limit uint64, paced bool, priority string) {
		mode := "policed"
		if limit == 0 {
			mode = "-"
		} else if paced {
			mode = "EDT"
		}
		views = append(views, &view{ID: l.ID, Pod: l.Pod, Direction: direction, Limit: limit, Priority: priority,
			Mode: mode, Status: status})
	}
	if l.Egress != 0 || l.Priority != "" {
		add("egress", l.Egress, l.EgressPaced, l.Priority)
	}
	if l.Ingress != 0 {
		add("ingress", l.Ingress, l.IngressPaced, "")
	}
	if len(views) == 0 {
		views = []*view{{ID: l.ID, Pod: l.Pod, Direction: "-", Mode: "-", Status: status}}
	}
	return views
}

func (m *manager) measure(v *view) {
	key := bpf.DatapathBandwidthKey{Slot: v.ID, Direction: egress}
	if v.Direction == "ingress" {
		key.Direction = ingress
	}
	var b bpf.DatapathBandwidth
	if v.Limit == 0 || m.Datapath.Bandwidths.Lookup(key, &b) != nil {
		return
	}
	v.Packets, v.DroppedPackets, v.DroppedBytes = b.Sent.Packets, b.Dropped.Packets, b.Dropped.Bytes
	m.mu.Lock()
	v.Rate = m.rates[key].rate
	m.mu.Unlock()
}
