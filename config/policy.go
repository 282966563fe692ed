package config

import "time"

// Policy is how policies are enforced.
type Policy struct {
	Audit    bool // key policyAuditMode: what is denied is reported, and goes on
	Lockdown bool // key endpointLockdownOnMapOverflow: what doesn't fit into a map is denied, else allowed
	MapMax   int  // key bpf.policyMapMax: rows of ports, and of peers in sets of rules, on the node
	PeersMax int  // key myelin.policy.peersMax: single addresses of pods, nodes and rules
	// DeniedFlows is what becomes of a flow that a policy comes to forbid:
	// "reset", "drop" or "leave".
	DeniedFlows string // key myelin.policy.deniedFlows
	Host        bool   // key hostFirewall.enabled: policies of nodes are enforced as well
	// Prefilter are CiliumCIDRGroups whose addresses may not come in by a wire.
	Prefilter []string // key myelin.policy.prefilter
	// CIDRMatchMode is what rules of CIDRs select beside what is outside of the
	// cluster: "nodes", or nothing.
	CIDRMatchMode []string // key policyCIDRMatchMode
}

// L7 is the proxy that enforces rules by HTTP request, DNS name and TLS server name.
type L7 struct {
	Proxy bool // key l7Proxy; if false, such rules allow nothing
	// Supervise starts the proxy, and starts it again when it ends; else another supervisor does.
	Supervise bool // key myelin.proxy.supervise
	// Open lets new flows pass without L7 rules while the proxy does not run.
	Open bool // key myelin.proxy.open

	MinTTL              int           // key dnsProxy.minTtl, seconds
	MaxAddressesPerName int           // key dnsProxy.endpointMaxIpPerHostname
	IdleGrace           time.Duration // key dnsProxy.idleConnectionGracePeriod
	RejectCode          string        // key dnsProxy.dnsRejectResponseCode: "refused" or "nameError"
}

// l7Settings are the keys of the proxy.
func l7Settings() []setting {
	return []setting{
		boolean("l7Proxy", func(c *Config) *bool { return &c.L7.Proxy }),
		boolean("myelin.proxy.supervise", func(c *Config) *bool { return &c.L7.Supervise }),
		boolean("myelin.proxy.open", func(c *Config) *bool { return &c.L7.Open }),
		integer("dnsProxy.minTtl", func(c *Config) *int { return &c.L7.MinTTL }, 0, 1<<31-1),
		integer("dnsProxy.endpointMaxIpPerHostname", func(c *Config) *int {
			return &c.L7.MaxAddressesPerName
		}, 1, 1<<16),
		duration("dnsProxy.idleConnectionGracePeriod", func(c *Config) *time.Duration {
			return &c.L7.IdleGrace
		}, 0, 24*time.Hour),
		oneOf("dnsProxy.dnsRejectResponseCode", func(c *Config) *string {
			return &c.L7.RejectCode
		}, []string{"refused", "nameError"}),
	}
}

// EnforcesL7 reports whether rules by HTTP request, DNS name and TLS server name are enforced.
func (c *Config) EnforcesL7() bool { return c.L7.Proxy && c.EnforcesPolicies() }
