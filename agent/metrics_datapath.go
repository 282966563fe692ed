package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/drop"
)

func (d *datapath) metrics(s feature.Sink) {
	d.counters(s)
	d.maps(s)
}

func (d *datapath) counters(s feature.Sink) {
	list, err := drop.Counters{Cpus: d.Datapath.Cpus}.Read()
	if err != nil {
		s.Failed("myelin_drop_count_total", err)
		return
	}
	for _, c := range list {
		labels := prometheus.Labels{"direction": direction(c.Hook), "hook": string(c.Hook)}
		if c.Outcome.IsDrop() {
			labels["reason"] = c.Outcome.Label()
			s.Counter("myelin_drop_count_total", "Dropped packets by direction, hook and reason.",
				float64(c.Packets), labels)
			s.Counter("myelin_drop_bytes_total", "Dropped bytes, from the Ethernet header on.",
				float64(c.Bytes), labels)
			continue
		}
		labels["way"] = c.Outcome.Label()
		s.Counter("myelin_forward_count_total", "Forwarded packets by direction, hook and way.",
			float64(c.Packets), labels)
		s.Counter("myelin_forward_bytes_total", "Forwarded bytes, from the Ethernet header on.",
			float64(c.Bytes), labels)
	}
}

// direction is what Cilium calls the direction of the packets at a hook: into the node or a pod, or out of it.
func direction(h bpf.Hook) string {
	if h == bpf.FromPod || h == bpf.ToWire {
		return "EGRESS"
	}
	return "INGRESS"
}

func (d *datapath) eventMetrics(s feature.Sink) {
	const name, help = "myelin_events_lost_total",
		"Events that subscribers missed: the kernel could not send them, or the subscriber was slow."
	slow, kernel := d.hub.Lost()
	s.Counter(name, help, float64(slow), prometheus.Labels{"where": "subscriber"})
	s.Counter(name, help, float64(kernel), prometheus.Labels{"where": "kernel"})
}

func (d *datapath) maps(s feature.Sink) {
	list, err := d.usages.Read()
	if err != nil {
		s.Failed("myelin_bpf_map_bytes", err)
		return
	}
	var all uint64
	for _, u := range list {
		all += u.Bytes
		labels := prometheus.Labels{"map_name": u.Name}
		s.Gauge("myelin_bpf_map_bytes", "Kernel memory of a BPF map.", float64(u.Bytes), labels)
		s.Gauge("myelin_bpf_map_capacity", "Room in a BPF map, in entries; of a ring buffer in bytes.", float64(u.Max),
			prometheus.Labels{"map_group": u.Name})
		if u.Limit > u.Max {
			s.Gauge("myelin_bpf_map_limit_entries", "What a BPF map grows to if rows need it.", float64(u.Limit),
				labels)
		}
		if u.Entries >= 0 {
			s.Gauge("myelin_bpf_map_entries", "Entries of a BPF map.", float64(u.Entries), labels)
			s.Gauge("myelin_bpf_map_pressure", "Part of a BPF map that is in use, 0 to 1.", u.Pressure(), labels)
		}
	}
	s.Gauge("myelin_bpf_maps_virtual_memory_max_bytes", "Kernel memory of all BPF maps of the datapath.",
		float64(all), nil)
}
