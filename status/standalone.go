package status

import (
	"fmt"

	"myelin/agent/feature"
)

// standalone marks what a load balancer without a cluster has no use for, and
// reports whether the node is one.
func (f *Facts) standalone(x *Feature) bool {
	if !f.Config.LoadBalancer.Standalone {
		return false
	}
	x.State, x.Chosen, x.Cost = Off, "off", ""
	x.Wanted, x.Why = onOff("loadBalancer.standalone", true), "no cluster: this node has no pods"
	return true
}

// programmed is where Services come from without a cluster.
func (f *Facts) programmed(x *Feature) {
	x.State, x.Why = OK, "Services come by the API and by myelin service upsert"
	x.Chosen = fmt.Sprintf("none; %s programmed", feature.Plural(f.Services.Services, "Service"))
}
