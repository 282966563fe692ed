// Package options reads what configures the metrics and exporters of flows: lists
// of metrics and of filters as Cilium's Helm values have them.
package options

import (
	"fmt"
	"slices"
	"strings"
)

// Metric is one item of hubble.metrics.enabled: "drop:sourceContext=pod|ip;labelsContext=source_ip".
type Metric struct {
	Name    string
	Context Context
	// Flags are options of the metric's own, in lower case: "query", "exemplars".
	Flags []string
}

// Context is which labels a metric has beside its own.
type Context struct {
	// Source and Destination are kinds of names, of which the first that a flow has
	// is the label. Those of a direction take the place of the others for its flows.
	Source, SourceEgress, SourceIngress                []string
	Destination, DestinationEgress, DestinationIngress []string
	// Labels are some of ContextLabels, in that order.
	Labels []string
}

// HasSource reports whether there is a label "source".
func (c *Context) HasSource() bool {
	return len(c.Source)+len(c.SourceEgress)+len(c.SourceIngress) > 0
}

// HasDestination reports whether there is a label "destination".
func (c *Context) HasDestination() bool {
	return len(c.Destination)+len(c.DestinationEgress)+len(c.DestinationIngress) > 0
}

// Names are the labels of the context, in the order of its values.
func (c *Context) Names() []string {
	names := slices.Clone(c.Labels)
	if c.HasSource() {
		names = append(names, "source")
	}
	if c.HasDestination() {
		names = append(names, "destination")
	}
	return names
}

// Has reports whether a flag is set.
func (m *Metric) Has(flag string) bool { return slices.Contains(m.Flags, flag) }

// ContextLabels returns the labels that labelsContext may list.
func ContextLabels() []string {
	return []string{"source_ip", "source_pod", "source_namespace", "source_workload", "source_workload_kind",
		"source_app", "destination_ip", "destination_pod", "destination_namespace", "destination_workload",
		"destination_workload_kind", "destination_app", "traffic_direction"}
}

// kinds returns the values that sourceContext, destinationContext and similar options may list.
func kinds() []string {
	return []string{"identity", "namespace", "pod", "pod-name", "dns", "ip", "reserved-identity", "workload",
		"workload-name", "app"}
}

// MetricNames returns the metrics that hubble.metrics.enabled may list.
func MetricNames() []string {
	return []string{"dns", "drop", "flow", "flows-to-world", "http", "httpV2", "icmp", "kafka", "policy",
		"port-distribution", "tcp"}
}

// flags are a metric's own, in lower case.
func flags(metric string) []string {
	switch metric {
	case "dns":
		return []string{"query", "ignoreaaaa"}
	case "flows-to-world":
		return []string{"any-drop", "port", "syn-only"}
	case "http", "httpV2":
		return []string{"exemplars"}
	}
	return nil
}

// Metrics parses the items of hubble.metrics.enabled. The error names the item.
func Metrics(items []string) ([]Metric, error) {
	var list []Metric
	for _, item := range items {
		m, err := metric(item)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", item, err)
		}
		for _, other := range list {
			if other.Name == m.Name {
				return nil, fmt.Errorf("%q: %s stands twice in the list", item, m.Name)
			}
			if strings.HasPrefix(other.Name, "http") && strings.HasPrefix(m.Name, "http") {
				return nil, fmt.Errorf("%q: http and httpV2 have metrics of the same name: choose one", item)
			}
		}
		list = append(list, m)
	}
	return list, nil
}

func metric(item string) (Metric, error) {
	name, rest, _ := strings.Cut(item, ":")
	m := Metric{Name: name}
	if !slices.Contains(MetricNames(), name) {
		return m, fmt.Errorf("there is no metric %q; there are %s", name, strings.Join(MetricNames(), ", "))
	}
	seen := map[string]bool{}
	for option := range strings.SplitSeq(rest, ";") {
		if option == "" {
			continue
		}
		key, value, _ := strings.Cut(option, "=")
		lower := strings.ToLower(key)
		if seen[lower] {
			return m, fmt.Errorf("option %s stands twice", key)
		}
		seen[lower] = true
		if err := m.option(lower, value); err != nil {
			return m, fmt.Errorf("option %s: %w", key, err)
		}
	}
	return m, nil
}

// option sets an option, of which the name is in lower case.
func (m *Metric) option(name, value string) error {
	if slices.Contains(flags(m.Name), name) {
		return m.flag(name, value)
	}
	values := strings.FieldsFunc(value, func(r rune) bool { return r == '|' || r == ',' })
	if name == "labelscontext" {
		return m.labels(values)
	}
	at := map[string]*[]string{
		"sourcecontext": &m.Context.Source, "sourceegresscontext": &m.Context.SourceEgress,
		"sourceingresscontext": &m.Context.SourceIngress, "destinationcontext": &m.Context.Destination,
		"destinationegresscontext":  &m.Context.DestinationEgress,
		"destinationingresscontext": &m.Context.DestinationIngress,
	}[name]
	if at == nil {
		own := append(flags(m.Name), "sourceContext", "destinationContext", "sourceEgressContext",
			"sourceIngressContext", "destinationEgressContext", "destinationIngressContext", "labelsContext")
		return fmt.Errorf("%s has no such option; it has %s", m.Name, strings.Join(own, ", "))
	}
	for _, v := range values {
		kind := strings.ToLower(v)
		if !slices.Contains(kinds(), kind) {
			return fmt.Errorf("there is no context %q; there are %s", v, strings.Join(kinds(), ", "))
		}
		*at = append(*at, kind)
	}
	if len(values) == 0 {
		return fmt.Errorf("has no value; it may be %s", strings.Join(kinds(), ", "))
	}
	return nil
}

func (m *Metric) flag(name, value string) error {
	switch value {
	case "true":
		m.Flags = append(m.Flags, name)
	case "":
		if name != "exemplars" { // as Cilium has it: exemplars alone is off
			m.Flags = append(m.Flags, name)
		}
	case "false":
	default:
		return fmt.Errorf("%q is not true or false", value)
	}
	return nil
}

func (m *Metric) labels(values []string) error {
	for _, v := range values {
		if !slices.Contains(ContextLabels(), v) {
			return fmt.Errorf("there is no label %q; there are %s", v, strings.Join(ContextLabels(), ", "))
		}
	}
	for _, l := range ContextLabels() {
		if slices.Contains(values, l) {
			m.Context.Labels = append(m.Context.Labels, l)
		}
	}
	return nil
}
