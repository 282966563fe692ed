// Package options is the configuration of events.
package options

import (
	"time"

	"myelin/config/key"
)

// Options are the values of the keys: which events the datapath reports, and how many at most.
type Options struct {
	Aggregation                string        // key bpf.monitorAggregation: "none", "low", "medium" or "maximum"
	Interval                   time.Duration // key bpf.monitorInterval: between reports on a live flow
	Drop, Trace, PolicyVerdict bool
	RateLimit, BurstLimit      int // events a second; both 0: unlimited
}

// Default are the options of an empty file.
func Default() Options {
	return Options{
		Aggregation: "medium", Interval: 5 * time.Second, Drop: true, Trace: true, PolicyVerdict: true,
	}
}

// Keys are the keys of the configuration file.
func Keys() []key.Key[Options] {
	return []key.Key[Options]{
		key.OneOf("bpf.monitorAggregation", func(o *Options) *string {
			return &o.Aggregation
		}, []string{"none", "low", "medium", "maximum"}),
		key.Duration("bpf.monitorInterval", func(o *Options) *time.Duration {
			return &o.Interval
		}, time.Second, time.Hour),
		key.Boolean("bpf.events.drop.enabled", func(o *Options) *bool { return &o.Drop }),
		key.Boolean("bpf.events.trace.enabled", func(o *Options) *bool { return &o.Trace }),
		key.Boolean("bpf.events.policyVerdict.enabled", func(o *Options) *bool { return &o.PolicyVerdict }),
		key.Integer("bpf.events.default.rateLimit", func(o *Options) *int { return &o.RateLimit }, 0, 1<<30),
		key.Integer("bpf.events.default.burstLimit", func(o *Options) *int {
			return &o.BurstLimit
		}, 0, 1<<30),
	}
}
