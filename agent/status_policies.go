package agent

import (
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"myelin/agent/feature"
	"myelin/policy"
	"myelin/status"
)

// status is what is known of policies; nothing where they are off.
func (pl *policies) status(txn statedb.ReadTxn) status.Policies {
	if pl.engine == nil {
		return status.Policies{}
	}
	p := status.CountPolicies(rows(pl.tables.Policies.All(txn)), rows(pl.tables.Groups.All(txn)),
		rows(pl.engine.Realised.All(txn)), pl.engine.Rules.NumObjects(txn), pl.engine.LastRealised())
	return p
}

// policies counts objects, rules and endpoints.
func (pl *policies) metrics(s feature.Sink) {
	if pl.engine == nil {
		return
	}
	txn := pl.DB.ReadTxn()
	p := pl.status(txn)
	const objects = "Policies and CiliumCIDRGroups by whether their newest version is in force."
	s.Gauge("myelin_policy", "Policies and CiliumCIDRGroups of which a version is in force.", float64(p.Accepted), nil)
	s.Gauge("myelin_policies", objects, float64(p.Accepted-p.Partly), prometheus.Labels{"state": "accepted"})
	s.Gauge("myelin_policies", objects, float64(p.Partly), prometheus.Labels{"state": "partly_enforced"})
	s.Gauge("myelin_policies", objects, float64(p.Refused), prometheus.Labels{"state": "refused"})
	s.Gauge("myelin_policy_rules", "Rules of policies.", float64(p.Rules), nil)
	enforced, failed := map[string]int{
		"none": 0, "ingress": 0, "egress": 0, "both": 0, "audit-ingress": 0, "audit-egress": 0, "audit-both": 0,
	}, 0
	for r := range pl.engine.Realised.All(txn) {
		enforced[enforcement(r)]++
		if r.Error != "" {
			failed++
		}
	}
	for word, n := range enforced {
		s.Gauge("myelin_policy_endpoint_enforcement_status",
			"Endpoints of this node by the directions that policies are enforced in.", float64(n),
			prometheus.Labels{"enforcement": word})
	}
	s.Gauge("myelin_policy_endpoints_failed", "Endpoints whose policies are not all in the kernel.",
		float64(failed), nil)
	if !p.Last.IsZero() {
		s.Gauge("myelin_policy_realised_timestamp_seconds",
			"When the kernel last got all that policies say, in seconds since 1970.",
			float64(p.Last.UnixNano())/1e9, nil)
	}
}

// enforcement is in which directions policies are enforced for an endpoint, in Cilium's words.
func enforcement(r *policy.Realised) string {
	word := map[[2]bool]string{
		{policy.Ingress: true}: "ingress", {policy.Egress: true}: "egress", {true, true}: "both",
	}[r.Enforced]
	switch {
	case word == "":
		return "none"
	case r.Audit:
		return "audit-" + word
	}
	return word
}
