// Package options is the configuration of BIG TCP.
package options

import "myelin/config/key"

// Options are the values of the keys.
type Options struct {
	IPv4   bool // key enableIPv4BIGTCP
	IPv6   bool // key enableIPv6BIGTCP
	Tunnel bool // with a tunnel, too, if its device takes such packets; key enableTunnelBIGTCP
}

// Keys are the keys of the configuration file.
func Keys() []key.Key[Options] {
	return []key.Key[Options]{
		key.Boolean("enableIPv4BIGTCP", func(o *Options) *bool { return &o.IPv4 }).With(key.NeedsCluster),
		key.Boolean("enableIPv6BIGTCP", func(o *Options) *bool { return &o.IPv6 }).With(key.NeedsCluster),
		key.Boolean("enableTunnelBIGTCP", func(o *Options) *bool {
			return &o.Tunnel
		}).If((*Options).on, "enableIPv4BIGTCP and enableIPv6BIGTCP are false"),
	}
}

func (o *Options) on() bool { return o.IPv4 || o.IPv6 }

// Network is what else of the configuration BIG TCP depends on.
type Network struct {
	Tunnel   bool   // routingMode: tunnel
	Legacy   bool   // bpf.hostLegacyRouting
	Dispatch string // loadBalancer.dsrDispatch where it has an effect, or empty
}

// Check reports values that are wrong together.
func (o *Options) Check(n Network, add key.Add) {
	name := "enableIPv6BIGTCP"
	if o.IPv4 {
		name = "enableIPv4BIGTCP"
	}
	if !o.on() {
		return
	}
	if n.Tunnel && !o.Tunnel {
		add(name, "with routingMode tunnel, enableTunnelBIGTCP must be true, and the kernel's tunnel devices must "+
			"take such packets")
	}
	if n.Legacy {
		add(name, "needs routing by BPF: bpf.hostLegacyRouting is true")
	}
	if n.Dispatch != "" && n.Dispatch != "opt" {
		add(name, "loadBalancer.dsrDispatch %s encapsulates packets, whose length has 16 bits: set it to opt",
			n.Dispatch)
	}
}
