package config

import (
	"strings"

	"myelin/hubble/options"
)

// HubbleMetrics are flows as metrics.
type HubbleMetrics struct {
	// Enabled are metrics with their options, as options.Metrics reads them; empty: none.
	Enabled     []string // key hubble.metrics.enabled
	OpenMetrics bool     // key hubble.metrics.enableOpenMetrics: the format, for exemplars
	Port        uint16   // key hubble.metrics.port
	// Address is the one of the node's that it listens on; empty: all of them.
	Address   string // key myelin.hubble.metrics.address
	MaxSeries int    // key myelin.hubble.metrics.maxSeries: of each metric
}

func hubbleMetricsSettings() []setting {
	return []setting{
		items("hubble.metrics.enabled", func(c *Config) *[]string { return &c.HubbleMetrics.Enabled },
			func(list []string) error {
				_, err := options.Metrics(list)
				return err
			}, "metrics such as drop:sourceContext=pod"),
		boolean("hubble.metrics.enableOpenMetrics", func(c *Config) *bool { return &c.HubbleMetrics.OpenMetrics }),
		port("hubble.metrics.port", func(c *Config) *uint16 { return &c.HubbleMetrics.Port }, 1),
		checked("myelin.hubble.metrics.address", func(c *Config) *string { return &c.HubbleMetrics.Address },
			checkAddress, pattern("^[0-9a-fA-F.:]*$", "an IP address of the node, or nothing")),
		integer("myelin.hubble.metrics.maxSeries", func(c *Config) *int {
			return &c.HubbleMetrics.MaxSeries
		}, 1, 1<<20),
	}
}

// items are a list, or text with blanks between them: what they are made of has commas.
func items(key string, at func(*Config) *[]string, check func([]string) error, want string) setting {
	return setting{key,
		func(c *Config, v any) error {
			if text, ok := v.(string); ok {
				var words []any
				for _, w := range strings.Fields(text) {
					words = append(words, w)
				}
				v = words
			}
			list, err := stringList(v)
			if err == nil {
				err = check(list)
			}
			if err == nil {
				*at(c) = list
			}
			return err
		},
		func(c *Config) string { return strings.Join(*at(c), " ") },
		explained(Schema{"anyOf": []any{listOf(Schema{"type": "string", "minLength": 1}),
			Schema{"type": "string"}, Schema{"type": "null"}}}, "a list of "+want),
	}
}
