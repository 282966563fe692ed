package agent

import (
	"fmt"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/service"
	"myelin/service/serviceapi"
	"myelin/service/serviceapi/probe"
	"myelin/status"
)

// status is what Services ask of the node, and how far sockets have it.
func (sv *services) status(txn statedb.ReadTxn) status.Services {
	if sv.services == nil {
		return status.Services{}
	}
	t := sv.services.Desired
	s := status.CountServices(rows(t.Services.All(txn)), t.Frontends.NumObjects(txn), t.Backends.NumObjects(txn))
	s.Attached, s.Why = sv.sockets.Status()
	s.Termination = sv.terminator.Status()
	s.Checks = feature.Count(txn, t.Checks, service.CheckStatus)
	s.HealthChecks = sv.checkCounts(txn)
	return s
}

// checkCounts counts the backends that are checked, for the status.
func (sv *services) checkCounts(txn statedb.ReadTxn) (c status.HealthChecks) {
	if sv.api == nil {
		return c
	}
	for p := range sv.api.Probes.All(txn) {
		c.Backends++
		if p.Health == serviceapi.Failing {
			c.Failing++
		}
		if p.Via != "" && p.Via != probe.Direct {
			c.ByDSR++
		}
	}
	return c
}

// counts has none if Services are off.
func (sv *services) counts(txn statedb.ReadTxn) []feature.TableCount {
	if sv.services == nil {
		return nil
	}
	t := sv.services.Desired
	return []feature.TableCount{feature.Count(txn, t.Frontends, service.FrontendStatus),
		feature.Count(txn, t.Backends, service.BackendStatus)}
}

// services counts Services, and sockets that asked for one.
func (sv *services) metrics(s feature.Sink) {
	sv.healthChecks(s)
	if sv.services == nil {
		return
	}
	txn, t := sv.DB.ReadTxn(), sv.services.Desired
	s.Gauge("myelin_services", "Services, and Pods with host ports, that this node serves.",
		float64(t.Services.NumObjects(txn)), nil)
	s.Gauge("myelin_service_frontends", "Addresses, ports and protocols that Services are reached by.",
		float64(t.Frontends.NumObjects(txn)), nil)
	s.Counter("myelin_service_sockets_ended_total",
		"Connected UDP sockets that were ended, for their backend had gone.",
		float64(sv.terminator.Status().Ended), nil)
	answers := map[string]int{"200": 0, "503": 0}
	for c := range t.Checks.All(txn) {
		answers[strconv.Itoa(c.Answer())]++
	}
	for answer, n := range answers {
		s.Gauge("myelin_service_health_checks",
			"Health check node ports of Services by what is answered there: 200 where this node has endpoints.",
			float64(n), prometheus.Labels{"answer": answer})
	}
	states := map[service.State]int{}
	for b := range t.Backends.All(txn) {
		states[b.State]++
	}
	for state := service.Active; state <= service.Maintenance; state++ {
		s.Gauge("myelin_service_backends", "Backends of Services by state.", float64(states[state]),
			prometheus.Labels{"state": state.String()})
	}
	s.Counter("myelin_service_flows_expired_total",
		"Flows of Services whose row was deleted since no packet was seen for too long.",
		float64(sv.served.Count.Load()), nil)
	sv.traffic(s)
	outcomes, err := socketOutcomes(sv.Datapath)
	if err != nil {
		s.Failed("myelin_service_sockets_total", err)
		return
	}
	for outcome, n := range outcomes {
		s.Counter("myelin_service_sockets_total",
			"Sockets that asked for a Service or its port, and datagrams of unconnected ones, by what they got.",
			float64(n), prometheus.Labels{"outcome": outcome})
	}
}

// socketOutcomes sums over CPUs, by name.
func socketOutcomes(d *bpf.Datapath) (map[string]uint64, error) {
	sums := map[string]uint64{}
	for i, name := range socketOutcomeNames() {
		var cpus []uint64
		if err := d.SocketOutcomes.Lookup(uint32(i), &cpus); err != nil {
			return nil, fmt.Errorf("read counters of sockets: %w", err)
		}
		for _, n := range cpus {
			sums[name] += n
		}
	}
	return sums, nil
}

// socketOutcomeNames are those of enum socket_outcome, in small letters.
func socketOutcomeNames() [bpf.DatapathSocketOutcomeSOCKET_OUTCOMES]string {
	return [...]string{
		bpf.DatapathSocketOutcomeSOCKET_TRANSLATED: "translated",
		bpf.DatapathSocketOutcomeSOCKET_NO_BACKEND: "no_backend",
		bpf.DatapathSocketOutcomeSOCKET_NONE_HERE:  "none_here",
		bpf.DatapathSocketOutcomeSOCKET_FAMILY:     "family",
		bpf.DatapathSocketOutcomeSOCKET_PORT_TAKEN: "port_taken",
		bpf.DatapathSocketOutcomeSOCKET_EVENT_LOST: "event_lost",
	}
}
