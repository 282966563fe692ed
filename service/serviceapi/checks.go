package serviceapi

import (
	"cmp"
	"context"

	"github.com/cilium/statedb"

	"myelin/service"
	"myelin/service/serviceapi/probe"
)

// UseFlows has checks that may travel by DSR do so; without, all are direct. It must be called before Run.
func (m *Manager) UseFlows(flows probe.Flows) { m.flows = flows }

// Travels reports whether a health check may travel by DSR, and returns a channel that is closed when a Service has
// changed.
func (m *Manager) Travels(txn statedb.ReadTxn) (travels bool, changed <-chan struct{}) {
	all, changed := m.Services.AllWatch(txn)
	for s := range all {
		if travels = s.Check != nil && m.travels(s, *s.Check); travels {
			break
		}
	}
	return travels, changed
}

// travels reports whether a Service may be forwarded by DSR, and a check of it may travel so.
func (m *Manager) travels(s *Service, c probe.Check) bool {
	return c.Via != probe.Direct && cmp.Or(s.Forwarding, m.params.Forwarding) != service.SNAT
}

// check runs a check of a backend.
func (m *Manager) check(ctx context.Context, key probeKey, job probe.Job) probe.Result {
	s, _, ok := m.Services.Get(m.params.DB.ReadTxn(), byName(key.service))
	if !ok || m.flows == nil || !m.travels(s, job.Check) {
		return probe.Result{Via: probe.Direct, Err: probe.Run(ctx, job.Check, job.Backend)}
	}
	var frontends []probe.Frontend
	for _, f := range s.Frontends {
		if f.Addr().Is4() == job.Backend.Addr().Is4() { // there is no DSR across families
			frontends = append(frontends, probe.Frontend{Address: f.AddrPort, Protocol: uint8(f.Protocol)})
		}
	}
	return probe.RunAsClient(ctx, job.Check, job.Backend, m.flows, frontends)
}
