// Package options is the configuration of bandwidth limits.
package options

import "myelin/config/key"

// Options are the values of the keys.
type Options struct {
	Enabled bool // key bandwidthManager.enabled
	// BBR has sockets of the node and, unless BBRHostOnly, of pods use BBR. Keys bandwidthManager.bbr and
	// bbrHostNamespaceOnly.
	BBR, BBRHostOnly bool
}

// Keys are the keys of the configuration file.
func Keys() []key.Key[Options] {
	return []key.Key[Options]{
		key.Boolean("bandwidthManager.enabled", func(o *Options) *bool { return &o.Enabled }).With(key.NeedsCluster),
		key.Boolean("bandwidthManager.bbr", func(o *Options) *bool { return &o.BBR }).With(key.NeedsCluster),
		key.Boolean("bandwidthManager.bbrHostNamespaceOnly", func(o *Options) *bool { return &o.BBRHostOnly }).
			If(func(o *Options) bool { return o.BBR }, "bandwidthManager.bbr is false"),
	}
}

// Check reports values that are wrong together.
func (o *Options) Check(add key.Add) {
	if o.BBR && !o.Enabled {
		add("bandwidthManager.bbr", "needs bandwidthManager.enabled: packets wait in its qdiscs")
	}
}
