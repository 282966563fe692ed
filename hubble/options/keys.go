package options

import (
	"time"

	"myelin/config/key"
	"myelin/hubble/export/ipfix"
	"myelin/hubble/export/otlp"
	"myelin/hubble/mask"
)

// Beginnings of keys.
const (
	static    = "hubble.export.static."
	otlpKeys  = "myelin.hubble.export.otlp."
	ipfixKeys = "myelin.hubble.export.ipfix."
)

// MetricsOptions are flows as metrics.
type MetricsOptions struct {
	// Enabled are metrics with their options, as Metrics reads them; empty: none.
	Enabled     []string // key hubble.metrics.enabled
	OpenMetrics bool     // key hubble.metrics.enableOpenMetrics: the format, for exemplars
	Port        uint16   // key hubble.metrics.port
	// Address is the one of the node's that it listens on; empty: all of them.
	Address   string // key myelin.hubble.metrics.address
	MaxSeries int    // key myelin.hubble.metrics.maxSeries: of each metric
}

func metricsKeys() []key.Key[MetricsOptions] {
	on := func(o *MetricsOptions) bool { return len(o.Enabled) > 0 }
	const off = "hubble.metrics.enabled is empty"
	return []key.Key[MetricsOptions]{
		key.Items("hubble.metrics.enabled", func(o *MetricsOptions) *[]string { return &o.Enabled },
			func(list []string) error {
				_, err := Metrics(list)
				return err
			}, "metrics such as drop:sourceContext=pod"),
		key.Boolean("hubble.metrics.enableOpenMetrics", func(o *MetricsOptions) *bool {
			return &o.OpenMetrics
		}).If(on, off),
		key.Port("hubble.metrics.port", func(o *MetricsOptions) *uint16 { return &o.Port }, 1).If(on, off),
		key.Checked("myelin.hubble.metrics.address", func(o *MetricsOptions) *string { return &o.Address },
			key.CheckAddress, key.Pattern("^[0-9a-fA-F.:]*$", "an IP address of the node, or nothing")).If(on, off),
		key.Integer("myelin.hubble.metrics.maxSeries", func(o *MetricsOptions) *int {
			return &o.MaxSeries
		}, 1, 1<<20).If(on, off),
	}
}

// ExportOptions are where flows are written to.
type ExportOptions struct {
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

func exportKeys() []key.Key[ExportOptions] {
	files := func(o *ExportOptions) bool { return o.Static }
	const noFiles = static + "enabled is false"
	filters := func(list []string) error {
		_, err := Filters(list)
		return err
	}
	return []key.Key[ExportOptions]{
		key.Boolean(static+"enabled", func(o *ExportOptions) *bool { return &o.Static }),
		key.Checked(static+"filePath", func(o *ExportOptions) *string { return &o.FilePath }, checkFilePath,
			key.Pattern("^(/.*|stdout)$", "an absolute path, or stdout")),
		key.Items(static+"fieldMask", func(o *ExportOptions) *[]string { return &o.FieldMask },
			func(list []string) error {
				_, err := mask.New(list)
				return err
			}, "fields of flows such as source.pod_name").If(files, noFiles),
		key.Items(static+"allowList", func(o *ExportOptions) *[]string { return &o.AllowList }, filters,
			"flow filters in JSON").If(files, noFiles),
		key.Items(static+"denyList", func(o *ExportOptions) *[]string { return &o.DenyList }, filters,
			"flow filters in JSON").If(files, noFiles),
		key.Integer(static+"fileMaxSizeMb", func(o *ExportOptions) *int { return &o.FileMaxSizeMB }, 1, 1<<20),
		key.Integer(static+"fileMaxBackups", func(o *ExportOptions) *int { return &o.FileMaxFiles }, 0, 1<<16),
		key.Boolean(static+"fileCompress", func(o *ExportOptions) *bool { return &o.FileCompress }),
		key.Boolean("hubble.export.dynamic.enabled", func(o *ExportOptions) *bool { return &o.Dynamic }),
		key.Path("myelin.hubble.export.dynamicPath", func(o *ExportOptions) *string { return &o.DynamicPath }),
		key.Checked(otlpKeys+"endpoint", func(o *ExportOptions) *string { return &o.OTLPEndpoint },
			optional(otlp.CheckEndpoint), key.Pattern("^(.+:[0-9]+)?$", "HOST:PORT, or nothing")),
		key.Boolean(otlpKeys+"insecure", func(o *ExportOptions) *bool {
			return &o.OTLPInsecure
		}).If(func(o *ExportOptions) bool {
			return o.OTLPEndpoint != ""
		}, otlpKeys+"endpoint is empty"),
		key.Checked(ipfixKeys+"collector", func(o *ExportOptions) *string { return &o.IPFIX },
			optional(func(s string) error {
				_, _, err := ipfix.ParseCollector(s)
				return err
			}),
			key.Pattern("^(((udp|tcp)://)?.+:[0-9]+)?$", "udp://HOST:PORT, tcp://HOST:PORT, or nothing")),
		key.Duration(ipfixKeys+"templateInterval", func(o *ExportOptions) *time.Duration {
			return &o.IPFIXInterval
		}, ipfix.MinTemplateInterval, 24*time.Hour).If(func(o *ExportOptions) bool {
			return o.IPFIX != ""
		}, ipfixKeys+"collector is empty"),
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
