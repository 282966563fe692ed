// Package config is what the agent tells the proxy, which enforces it with or without the agent.
package config

import (
	"net/netip"
	"time"

	"myelin/cluster"
	"myelin/policy"
)

// Config is complete: it replaces the one before it.
type Config struct {
	Rules     []Rule     `json:"rules"`
	Selectors []Selector `json:"selectors"`
	Endpoints []Endpoint `json:"endpoints"`
	DNS       DNS        `json:"dns"`
	HTTP      HTTP       `json:"http"`
	Secrets   []Secret   `json:"secrets,omitempty"`
	// Records says whether flow records of requests and DNS messages are wanted: they cost as much as the messages.
	Records bool `json:"records"`
}

// Rule is what a rule number in a conntrack entry stands for. A flow whose entry has one or two such numbers, by
// direction, must satisfy both.
type Rule struct {
	// Number is unique among the rules of a node, over restarts too.
	Number uint32 `json:"number"`
	// Parts are the policies' rules that allow the flow by L7. A request must satisfy one of them.
	Parts []Part `json:"parts"`
}

// Part is a rule of a policy.
type Part struct {
	Origin policy.Origin `json:"origin"`
	L7     policy.L7     `json:"l7"`
}

// Selector is names that a rule of toFQDNs selects.
type Selector struct {
	// Number is unique among the selectors of a node, over restarts too: from 1 on.
	Number uint32               `json:"number"`
	Names  []policy.NamePattern `json:"names"`
}

// Endpoint is a pod of this node whose DNS messages pass through the proxy.
type Endpoint struct {
	Pod       cluster.Key  `json:"pod"`
	Slot      uint16       `json:"slot"`
	Addresses []netip.Addr `json:"addresses"`
	// Selectors are the numbers of the selectors that the endpoint's policies have.
	Selectors []uint32 `json:"selectors"`
}

// DNS has the values of Cilium's dnsProxy.
type DNS struct {
	MinTTL                    time.Duration `json:"minTTL"`
	MaxAddressesPerName       int           `json:"maxAddressesPerName"` // endpointMaxIpPerHostname
	IdleConnectionGracePeriod time.Duration `json:"idleConnectionGracePeriod"`
	// RejectCode is the response code of queries that no rule allows (RFC 1035, section 4.1.1): 3 or 5.
	RejectCode int `json:"rejectCode"`
	// Cache lets repeated messages pass in the datapath, unless there are records.
	Cache bool `json:"cache"`
}

// HTTP has limits. Zero means the default of the proxy.
type HTTP struct {
	MaxHeaderBytes int           `json:"maxHeaderBytes"`
	MaxConnections int           `json:"maxConnections"`
	HeaderTimeout  time.Duration `json:"headerTimeout"`
	IdleTimeout    time.Duration `json:"idleTimeout"`
}

// Secret is the data of a Secret that rules name.
type Secret struct {
	policy.SecretRef
	Data map[string][]byte `json:"data"`
}
