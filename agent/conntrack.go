package agent

import (
	"fmt"

	"myelin/bpf"
	"myelin/flow"
	"myelin/status"
)

// conntrack is how full the conntrack tables are that this configuration has.
func (d *datapath) conntrack() (list []status.Conntrack) {
	add := func(table string, read func() (flow.Usage, error)) {
		u, err := read()
		if err != nil {
			d.Log.Warn("usage of a conntrack table is not known", "table", table, "error", err)
		} else if u.Max > 1 {
			list = append(list, status.Conntrack{Table: table, Usage: u, Pod: d.endpoints.podOf(u.Slot)})
		}
	}
	add("flows", d.collector.Usage)
	if d.services.served != nil {
		add("nat_entries", d.services.served.Shares.Usage)
	}
	return list
}

// eventsLost sums over CPUs.
func (d *datapath) eventsLost() (lost uint64, err error) {
	var cpus []bpf.DatapathCpu
	if err := d.Datapath.Cpus.Lookup(uint32(0), &cpus); err != nil {
		return 0, fmt.Errorf("read counters: %w", err)
	}
	for _, c := range cpus {
		lost += c.Budget.Lost
	}
	return lost, nil
}
