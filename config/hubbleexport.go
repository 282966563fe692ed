package config

import (
	"time"

	"myelin/hubble/export/ipfix"
	"myelin/hubble/export/otlp"
	"myelin/hubble/mask"
	"myelin/hubble/options"
)

// HubbleExport is where flows are written to.
type HubbleExport struct {
	Static                      bool     // key hubble.export.static.enabled
	FilePath                    string   // keys hubble.export.static.*
	FieldMask                   []string // fields of flows; empty: all
	AllowList, DenyList         []string // FlowFilters in JSON
	FileMaxSizeMB, FileMaxFiles int      // in MiB; rotated files that are kept
	FileCompress                bool

	Dynamic     bool   // key hubble.export.dynamic.enabled
	DynamicPath string // key myelin.hubble.export.dynamicPath: the file that lists exporters

	OTLPEndpoint  string // key myelin.hubble.export.otlp.endpoint; empty: none
	OTLPInsecure  bool
	IPFIX         string        // key myelin.hubble.export.ipfix.collector; empty: none
	IPFIXInterval time.Duration // key myelin.hubble.export.ipfix.templateInterval
}

func hubbleExport() HubbleExport {
	return HubbleExport{FilePath: "/var/run/cilium/hubble/events.log", FileMaxSizeMB: options.DefaultMaxSizeMB,
		FileMaxFiles: options.DefaultMaxBackups, DynamicPath: "/flowlog-config/flowlogs.yaml",
		IPFIXInterval: 10 * time.Minute}
}

func hubbleExportSettings() []setting {
	const static, own = "hubble.export.static.", "myelin.hubble.export."
	filters := func(list []string) error {
		_, err := options.Filters(list)
		return err
	}
	return []setting{
		boolean(static+"enabled", func(c *Config) *bool { return &c.HubbleExport.Static }),
		checked(static+"filePath", func(c *Config) *string { return &c.HubbleExport.FilePath }, options.CheckFilePath,
			pattern("^(/.*|stdout)$", "an absolute path, or stdout")),
		items(static+"fieldMask", func(c *Config) *[]string { return &c.HubbleExport.FieldMask },
			func(list []string) error {
				_, err := mask.New(list)
				return err
			}, "fields of flows such as source.pod_name"),
		items(static+"allowList", func(c *Config) *[]string { return &c.HubbleExport.AllowList }, filters,
			"flow filters in JSON"),
		items(static+"denyList", func(c *Config) *[]string { return &c.HubbleExport.DenyList }, filters,
			"flow filters in JSON"),
		integer(static+"fileMaxSizeMb", func(c *Config) *int { return &c.HubbleExport.FileMaxSizeMB }, 1, 1<<20),
		integer(static+"fileMaxBackups", func(c *Config) *int { return &c.HubbleExport.FileMaxFiles }, 0, 1<<16),
		boolean(static+"fileCompress", func(c *Config) *bool { return &c.HubbleExport.FileCompress }),
		boolean("hubble.export.dynamic.enabled", func(c *Config) *bool { return &c.HubbleExport.Dynamic }),
		path(own+"dynamicPath", func(c *Config) *string { return &c.HubbleExport.DynamicPath }),
		checked(own+"otlp.endpoint", func(c *Config) *string { return &c.HubbleExport.OTLPEndpoint },
			optional(otlp.CheckEndpoint), pattern("^(.+:[0-9]+)?$", "HOST:PORT, or nothing")),
		boolean(own+"otlp.insecure", func(c *Config) *bool { return &c.HubbleExport.OTLPInsecure }),
		checked(own+"ipfix.collector", func(c *Config) *string { return &c.HubbleExport.IPFIX },
			optional(func(s string) error {
				_, _, err := ipfix.ParseCollector(s)
				return err
			}), pattern("^(((udp|tcp)://)?.+:[0-9]+)?$", "udp://HOST:PORT, tcp://HOST:PORT, or nothing")),
		duration(own+"ipfix.templateInterval", func(c *Config) *time.Duration {
			return &c.HubbleExport.IPFIXInterval
		}, ipfix.MinTemplateInterval, 24*time.Hour),
	}
}

// optional takes nothing, or what check takes.
func optional(check func(string) error) func(string) error {
	return func(s string) error {
		if s == "" {
			return nil
		}
		return check(s)
	}
}
