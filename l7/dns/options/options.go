// Package options is the configuration of rules by DNS name.
package options

import (
	"time"

	"myelin/config/key"
)

// Options are the values of the keys.
type Options struct {
	MinTTL              int           // key dnsProxy.minTtl, seconds
	MaxAddressesPerName int           // key dnsProxy.endpointMaxIpPerHostname
	IdleGrace           time.Duration // key dnsProxy.idleConnectionGracePeriod
	RejectCode          string        // key dnsProxy.dnsRejectResponseCode: "refused" or "nameError"
	Cache               bool          // key dnsProxy.cache
}

// Default are the options of an empty file.
func Default() Options { return Options{MaxAddressesPerName: 1000, RejectCode: "refused", Cache: true} }

// Keys are the keys of the configuration file.
func Keys() []key.Key[Options] {
	return []key.Key[Options]{
		key.Integer("dnsProxy.minTtl", func(o *Options) *int { return &o.MinTTL }, 0, 1<<31-1),
		key.Integer("dnsProxy.endpointMaxIpPerHostname", func(o *Options) *int {
			return &o.MaxAddressesPerName
		}, 1, 1<<16),
		key.Duration("dnsProxy.idleConnectionGracePeriod", func(o *Options) *time.Duration {
			return &o.IdleGrace
		}, 0, 24*time.Hour),
		key.OneOf("dnsProxy.dnsRejectResponseCode", func(o *Options) *string {
			return &o.RejectCode
		}, []string{"refused", "nameError"}),
		key.Boolean("dnsProxy.cache", func(o *Options) *bool { return &o.Cache }),
	}
}
