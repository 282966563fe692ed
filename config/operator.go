package config

import (
	"net/netip"

	"myelin/config/key"
)

// ClusterPool is what nodes get podCIDRs of in ipam.mode cluster-pool.
type ClusterPool struct {
	IPv4, IPv6 []netip.Prefix // keys ipam.operator.clusterPoolIPv4PodCIDRList, …IPv6…
	// IPv4Bits and IPv6Bits are how long a node's prefix is: keys
	// ipam.operator.clusterPoolIPv4MaskSize, …IPv6….
	IPv4Bits, IPv6Bits int
}

// operatorSettings are keys that the operator acts on.
func operatorSettings() []setting {
	return []setting{
		key.CIDRs("ipam.operator.clusterPoolIPv4PodCIDRList", func(c *Config) *[]netip.Prefix {
			return &c.ClusterPool.IPv4
		}),
		key.Integer("ipam.operator.clusterPoolIPv4MaskSize", func(c *Config) *int {
			return &c.ClusterPool.IPv4Bits
		}, 1, 30),
		key.CIDRs("ipam.operator.clusterPoolIPv6PodCIDRList", func(c *Config) *[]netip.Prefix {
			return &c.ClusterPool.IPv6
		}),
		key.Integer("ipam.operator.clusterPoolIPv6MaskSize", func(c *Config) *int {
			return &c.ClusterPool.IPv6Bits
		}, 1, 126),
		key.OneOf("defaultLBServiceIPAM", func(c *Config) *string {
			return &c.DefaultLBServiceIPAM
		}, []string{"lbipam", "none"}, "nodeipam"),
	}
}

// maxPoolBits is how many bits longer a node's prefix may be than its pool: the
// operator looks for free ones one by one.
const maxPoolBits = 16

// checkPools checks the pools of the enabled families, if ipam.mode uses them.
func (c *Config) checkPools(add func(key, format string, args ...any)) {
	if c.IPAMMode != "cluster-pool" {
		return
	}
	if c.Source() == Directory {
		add("ipam.mode", "is cluster-pool, which needs an API server: the cluster is read from myelin.manifests")
	}
	for _, f := range []struct {
		on   bool
		name string
		list []netip.Prefix
		bits int
		is   func(netip.Addr) bool
	}{{c.IPv4.Enabled, "IPv4", c.ClusterPool.IPv4, c.ClusterPool.IPv4Bits, netip.Addr.Is4},
		{c.IPv6.Enabled, "IPv6", c.ClusterPool.IPv6, c.ClusterPool.IPv6Bits, netip.Addr.Is6}} {
		key := "ipam.operator.clusterPool" + f.name + "PodCIDRList"
		if f.on && len(f.list) == 0 {
			add(key, "must be set where ipam.mode is cluster-pool and %s is on", f.name)
		}
		for i, p := range f.list {
			switch {
			case !f.on:
			case !f.is(p.Addr()):
				add(key, "%s is not of %s", p, f.name)
			case p.Bits() > f.bits || f.bits-p.Bits() > maxPoolBits:
				add(key, "%s: clusterPool%sMaskSize is %d: it must be %d to %d", p, f.name, f.bits, p.Bits(),
					p.Bits()+maxPoolBits)
			}
			for _, o := range f.list[:i] {
				if o.Overlaps(p) {
					add(key, "%s overlaps %s", p, o)
				}
			}
		}
	}
}
