package config

import (
	"cmp"
	"slices"

	gateway "myelin/service/gateway/options"
)

// maxPeers limits the peers of a load balancer: each costs the memory of what it has not been sent yet.
const maxPeers = 15

// checkGateway refuses peers that cannot be authenticated, and too many of them.
func (c *Config) checkGateway(add func(key, format string, args ...any)) {
	const key, tls = "myelin.gateway.peers", "myelin.gateway.tls."
	g := &c.Myelin.Gateway
	if n := len(g.Peers); n > maxPeers {
		add(key, "has %d peers, and may have %d", n, maxPeers)
	}
	if len(g.Peers) > 0 && !c.LoadBalancer.Standalone {
		add(key, "is set, and loadBalancer.standalone is false: only load balancers without a cluster have peers")
	}
	files := []string{g.CertFile, g.KeyFile, g.CAFile}
	some := cmp.Or(files...) != ""
	switch {
	case some && slices.Contains(files, ""):
		add(tls+"certFile", "%scertFile, keyFile and caFile must all be set, or none of them", tls)
	case some && g.TrustedNetwork:
		add("myelin.gateway.trustedNetwork", "is true, and %scertFile is set: peers have certificates or need none",
			tls)
	case len(g.Peers) > 0 && !some && !g.TrustedNetwork:
		add(key, "needs %scertFile, keyFile and caFile, without which any host could redirect connections; or "+
			"myelin.gateway.trustedNetwork: true, if only peers can send from their addresses", tls)
	}
}

// gatewayWarnings are of keys that mean nothing without peers.
func (c *Config) gatewayWarnings(add func(key, format string, args ...any)) {
	if len(c.Myelin.Gateway.Peers) > 0 {
		return
	}
	for _, s := range gateway.Keys() {
		if c.isSet(s.Name) && s.Name != "myelin.gateway.peers" {
			add(s.Name, "has no effect: myelin.gateway.peers is empty")
		}
	}
}
