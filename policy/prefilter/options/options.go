// Package options is the configuration of the denylist.
package options

import "myelin/config/key"

// Options are the values of the keys.
type Options struct {
	// Groups are CiliumCIDRGroups whose addresses may not come in by a wire.
	Groups []string // key myelin.policy.prefilter
}

// Keys are the keys of the configuration file.
func Keys() []key.Key[Options] {
	return []key.Key[Options]{
		key.ObjectNames("myelin.policy.prefilter", func(o *Options) *[]string {
			return &o.Groups
		}).With(key.NeedsCluster | key.NeedsPolicies | key.UsesXDP),
	}
}
