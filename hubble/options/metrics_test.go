package options

import (
	"reflect"
	"strings"
	"testing"
)

func TestMetrics(t *testing.T) {
	got, err := Metrics([]string{"dns:query;ignoreAAAA", "tcp",
		"drop:sourceContext=pod|ip;destinationEgressContext=DNS,workload-name",
		"httpV2:exemplars=true;labelsContext=traffic_direction,source_ip"})
	if err != nil {
		t.Fatal(err)
	}
	want := []Metric{
		{Name: "dns", Flags: []string{"query", "ignoreaaaa"}},
		{Name: "tcp"},
		{Name: "drop", Context: Context{Source: []string{"pod", "ip"},
			DestinationEgress: []string{"dns", "workload-name"}}},
		{Name: "httpV2", Flags: []string{"exemplars"},
			Context: Context{Labels: []string{"source_ip", "traffic_direction"}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if names := strings.Join(got[2].Context.Names(), " "); names != "source destination" {
		t.Errorf("labels %q", names)
	}
}

func TestMetricsRefused(t *testing.T) {
	for item, want := range map[string]string{
		"dnss":                            `"dnss": there is no metric "dnss"`,
		"drop:sourceContext=podd":         `podd": option sourceContext: there is no context "podd"`,
		"drop:sourceContext":              "has no value",
		"drop:query":                      "drop has no such option",
		"drop:labelsContext=source_ports": `there is no label "source_ports"`,
		"dns:query=maybe":                 `"maybe" is not true or false`,
		"dns:query;Query":                 "option Query stands twice",
		"tcp":                             "tcp stands twice",
		"httpV2":                          "http and httpV2",
	} {
		_, err := Metrics([]string{"tcp", "http", item})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", item, err, want)
		}
	}
}
