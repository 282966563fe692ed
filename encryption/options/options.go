// Package options is the configuration of encryption between nodes.
package options

import (
	"time"

	"myelin/config/key"
)

// The values of encryption.type.
const (
	wireGuard = "wireguard"
	ipsec     = "ipsec"
)

// Options are the values of the keys.
type Options struct {
	Enabled bool   // key encryption.enabled
	Type    string // key encryption.type
	// Keepalive is how often an idle peer gets a packet, 0: never. Key encryption.wireguard.persistentKeepalive.
	Keepalive time.Duration
	// NodeEncryption is about traffic between nodes themselves. Key encryption.nodeEncryption.
	NodeEncryption bool
}

// maxKeepalive is the largest interval that WireGuard has: seconds in 16 bits.
const maxKeepalive = 65535 * time.Second

// Default are the options of an empty file. The type is that of Cilium.
func Default() Options { return Options{Type: ipsec} }

// Keys are the keys of the configuration file.
func Keys() []key.Key[Options] {
	on := func(o *Options) bool { return o.Enabled }
	const off = "encryption.enabled is false"
	return []key.Key[Options]{
		key.Boolean("encryption.enabled", func(o *Options) *bool { return &o.Enabled }).With(key.NeedsCluster),
		key.OneOf("encryption.type", func(o *Options) *string {
			return &o.Type
		}, []string{wireGuard, ipsec}).If(on, off),
		key.Duration("encryption.wireguard.persistentKeepalive", func(o *Options) *time.Duration {
			return &o.Keepalive
		}, 0, maxKeepalive).If(on, off),
		key.Boolean("encryption.nodeEncryption", func(o *Options) *bool { return &o.NodeEncryption }).If(on, off),
	}
}

// Check reports values that are wrong together.
func (o *Options) Check(add key.Add) {
	if o.Enabled && o.Type != wireGuard {
		add("encryption.type", "%s, which is the default, is not yet possible: set encryption.type to %s", o.Type,
			wireGuard)
	}
	if o.Enabled && o.NodeEncryption {
		add("encryption.nodeEncryption", "not yet: traffic between nodes themselves is not encrypted")
	}
	if o.Keepalive%time.Second != 0 {
		add("encryption.wireguard.persistentKeepalive", "%s is no whole number of seconds", o.Keepalive)
	}
}
