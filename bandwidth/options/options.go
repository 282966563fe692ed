// Package options is the configuration of bandwidth limits.
package options

import "myelin/config/key"

// Options are the values of the keys.
type Options struct {
	Enabled bool // key bandwidthManager.enabled
}

// Keys are the keys of the configuration file.
func Keys() []key.Key[Options] {
	return []key.Key[Options]{
		key.Boolean("bandwidthManager.enabled", func(o *Options) *bool { return &o.Enabled }).With(key.NeedsCluster),
	}
}
