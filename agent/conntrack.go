package agent

import (
	"strconv"

	"myelin/flow"
	"myelin/status"
)

// conntrack is how full the conntrack tables are that this configuration has.
func (a *Agent) conntrack() (list []status.Conntrack) {
	add := func(table string, read func() (flow.Usage, error)) {
		u, err := read()
		if err != nil {
			a.log.Warn("usage of a conntrack table is not known", "table", table, "error", err)
		} else if u.Max > 1 {
			list = append(list, status.Conntrack{Table: table, Usage: u, Pod: a.podOf(u.Slot)})
		}
	}
	add("flows", a.collector.Usage)
	if a.served != nil {
		add("nat_entries", a.served.Shares.Usage)
	}
	return list
}

// podOf is "namespace/name" of the pod whose endpoint has the ID, the ID where
// there is none.
func (a *Agent) podOf(slot uint16) string {
	if slot == 0 {
		return ""
	}
	for e := range a.endpoints.All(a.db.ReadTxn()) {
		if e.ID == slot && e.Pod != "" {
			return e.Namespace + "/" + e.Pod
		}
	}
	return strconv.Itoa(int(slot))
}
