package config

import (
	"strings"
	"testing"
)

func TestHubbleMetricsAndExport(t *testing.T) {
	const metrics, static = "hubble.metrics.enabled: ", "hubble.export.static: "
	for text, want := range map[string]string{
		metrics + "['drop:sourceContext=pod|ip;labelsContext=source_ip,source_pod', tcp]": "",
		metrics + "'dns:query drop'": "",
		metrics + "null":             "",

		metrics + "[drop:x=1]": `"drop:x=1": option x: drop has no such option`,

		static + `{enabled: true, filePath: /x/e.log, allowList: ['{"verdict":["DROPPED"]}']}`: "",

		static + `{denyList: ['{"verdikt":[]}']}`: "hubble.export.static.denyList:",
		static + "{fieldMask: [source.pod]}":      `has no field "pod"`,
		static + "{fieldAggregate: [time]}":       "not yet: flows are aggregated",

		"myelin.hubble.export.otlp.endpoint: 'a'":            "is not HOST:PORT",
		"myelin.hubble.export.ipfix.collector: 'sctp://a:1'": "is not udp://",
	} {
		c, err := Parse([]byte(text), "f.yaml")
		if want == "" && (err != nil || len(c.Warnings) > 1) || want != "" && (err == nil ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
