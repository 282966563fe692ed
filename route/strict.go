package route

import (
	"net/netip"
	"slices"
)

// strict reports whether all of a prefix is one of Config.Strict.
func (d *derivation) strict(p netip.Prefix) bool {
	return slices.ContainsFunc(d.Config.Strict, func(strict netip.Prefix) bool {
		return strict.Bits() <= p.Bits() && strict.Contains(p.Addr())
	})
}

// forStrict keeps what the host itself sends to pods of nodes that are not known yet, or have no key, from leaving by
// other routes. The datapath drops what pods send.
func (d *derivation) forStrict() {
	for _, p := range d.Config.Strict {
		if d.enabled(p.Addr()) && !slices.Contains(d.self.PodCIDRs, p.Masked()) { // which has such a route
			d.route(&Route{Prefix: p.Masked(), Unreachable: true, Metric: lastMetric, Owner: "strict encryption"})
		}
	}
}
