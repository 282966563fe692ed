package operator

import (
	"github.com/prometheus/client_golang/prometheus"

	"myelin/operator/clusterpool"
	"myelin/operator/lbipam"
	"myelin/operator/pki"
)

// metrics are numbers about what the leader keeps. Names are those of Cilium's operator,
// but for the program's, where it has them.
type metrics struct {
	nodes, available, used, addressesLeft, addressesUsed *prometheus.GaugeVec
	certificates                                         *prometheus.GaugeVec
	conflicts, services, lacking, policies, invalid      prometheus.Gauge
}

func newMetrics(o *Operator) *metrics {
	vec := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "myelin_operator", Name: name,
			Help: help}, labels)
	}
	one := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "myelin_operator", Name: name, Help: help})
	}
	m := &metrics{
		nodes:         vec("ipam_nodes", "Nodes by how they are doing: total, in-deficit.", "category"),
		available:     vec("ipam_available_pod_cidrs", "PodCIDRs that no node has.", "family"),
		used:          vec("ipam_used_pod_cidrs", "PodCIDRs of pools that nodes have.", "family"),
		addressesLeft: vec("lbipam_ips_available", "Addresses of a pool that no Service has.", "pool"),
		addressesUsed: vec("lbipam_ips_used", "Addresses of a pool that Services have.", "pool"),
		certificates: vec("certificate_expiration_timestamp_seconds",
			"When certificates expire that the operator renews, by Secret.", "secret"),
		conflicts: one("lbipam_conflicting_pools",
			"Pools that nothing is given of, since older ones have their addresses."),
		services: one("lbipam_services_matching", "Services that want addresses of pools."),
		lacking:  one("lbipam_services_unsatisfied", "Services that lack some."),
		policies: one("policies", "CiliumNetworkPolicies and CiliumClusterwideNetworkPolicies."),
		invalid:  one("policies_invalid", "Those that are refused."),
	}
	if o.Registry == nil {
		return m
	}
	o.Registry.MustRegister(m.nodes, m.available, m.used, m.addressesLeft, m.addressesUsed, m.certificates, m.conflicts,
		m.services, m.lacking, m.policies, m.invalid,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "myelin_operator", Name: "leading",
			Help: "1 while this one leads."}, func() float64 {
			if leading, _ := o.State(); leading {
				return 1
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "myelin_operator", Name: "failing",
			Help: "1 while something can't be done and is tried again."}, func() float64 {
			if _, problem := o.State(); problem != nil {
				return 1
			}
			return 0
		}))
	return m
}

func (m *metrics) setPrefixes(families []clusterpool.Family, use []clusterpool.Use, nodes int) {
	lacking := 0
	for i, f := range families {
		name := "ipv6"
		if len(f.Pools) > 0 && f.Pools[0].Addr().Is4() {
			name = "ipv4"
		}
		m.available.WithLabelValues(name).Set(float64(use[i].Total - use[i].Used))
		m.used.WithLabelValues(name).Set(float64(use[i].Used))
		lacking = max(lacking, use[i].Lacking)
	}
	m.nodes.WithLabelValues("total").Set(float64(nodes))
	m.nodes.WithLabelValues("in-deficit").Set(float64(lacking))
}

func (m *metrics) setCertificate(secret string, p pki.Pair) {
	m.certificates.WithLabelValues(secret).Set(float64(p.Expires().Unix()))
}

func (m *metrics) setPools(usage map[string]lbipam.Usage, services, lacking int) {
	m.addressesLeft.Reset()
	m.addressesUsed.Reset()
	conflicts := 0
	for name, u := range usage {
		m.addressesLeft.WithLabelValues(name).Set(float64(u.Available()))
		m.addressesUsed.WithLabelValues(name).Set(float64(u.Used))
		if u.Conflict != "" {
			conflicts++
		}
	}
	m.conflicts.Set(float64(conflicts))
	m.services.Set(float64(services))
	m.lacking.Set(float64(lacking))
}

func (m *metrics) setPolicies(all, invalid int) {
	m.policies.Set(float64(all))
	m.invalid.Set(float64(invalid))
}
