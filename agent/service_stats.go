package agent

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"myelin/agent/feature"
	"myelin/service"
	"myelin/service/stats"
)

// eachServiceStat calls yield for what each backend of a Service has counted.
func (sv *services) eachServiceStat(yield func(tableRow) bool) error {
	clock, err := sv.flows.Clock()
	if err != nil {
		return err
	}
	rows, err := sv.stats.Read(clock, time.Now())
	if err != nil {
		return err
	}
	for _, e := range stats.Name(rows, sv.DB.ReadTxn(), sv.services.Desired) {
		if !yield(e) {
			break
		}
	}
	return nil
}

// statsStatus is the line about counters of backends.
func (sv *services) statsStatus() feature.Status {
	x := feature.Status{Name: "Service Statistics", State: feature.Off, Chosen: "off", Why: "there are no Services"}
	if sv.stats == nil {
		return x
	}
	size, used, short := sv.stats.Usage()
	x.State, x.Why = feature.OK, "packets, bytes and new flows by Service and backend: myelin service top"
	x.Chosen = fmt.Sprintf("counters of %s, room for %d", feature.Plural(used, "backend"), size)
	x.Cost = "per packet of a Service a lookup in an array of the CPU"
	if !sv.Config.PerPacket() {
		x.Cost = "per connection a lookup"
	}
	if short {
		x.FallBack("some backends have no counters of their own: they are counted together")
	}
	return x
}

// traffic counts packets, bytes and new flows by Service. Backends are not told apart: they come and go.
func (sv *services) traffic(s feature.Sink) {
	totals, err := sv.stats.Totals()
	if err != nil {
		s.Failed("myelin_service_packets_total", err)
		return
	}
	name := service.Names(sv.DB.ReadTxn(), sv.services.Desired)
	for id, c := range totals {
		text := name(id)
		if text == "" && id != 0 || c == (stats.Counters{}) {
			continue // it was deleted, or is not in use
		}
		for side, direction := range []string{"request", "reply"} {
			labels := prometheus.Labels{"service": text, "direction": direction}
			s.Counter("myelin_service_packets_total",
				"Packets that were translated for a Service, since the agent began.", float64(c.Packets[side]), labels)
			s.Counter("myelin_service_bytes_total",
				"Bytes that were translated for a Service, from the Ethernet header on, since the agent began.",
				float64(c.Bytes[side]), labels)
		}
		s.Counter("myelin_service_new_flows_total",
			"New flows of a Service, for packets or at a socket, since the agent began.", float64(c.Flows),
			prometheus.Labels{"service": text})
	}
	size, used, _ := sv.stats.Usage()
	s.Gauge("myelin_service_stats_entries", "Backends of Services that have counters of their own.", float64(used), nil)
	s.Gauge("myelin_service_stats_max_entries", "Room for backends of Services with counters of their own.",
		float64(size), nil)
}
