package config

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
	// CIDRMatchMode is what rules of CIDRs select beside what is outside of the
	// cluster: "nodes", or nothing.
	CIDRMatchMode []string // key policyCIDRMatchMode
}

// EnforcesL7 reports whether rules by HTTP request, DNS name and TLS server name are enforced.
func (c *Config) EnforcesL7() bool { return c.L7.Proxy && c.EnforcesPolicies() }
