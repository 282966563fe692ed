package config

import (
	"strings"

	"myelin/config/key"
)

// Schema is a JSON Schema, draft 7, of one value.
type Schema = key.Schema

// Key describes a key of the configuration, for documentation and for the chart's schema.
type Key struct {
	Name    string // dotted; a subtree ends in ".*"
	Default string // as in Setting; empty for what is only accepted
	// Schema takes each value that the file may have there, and few others. It is
	// nil where any will do: the agent doesn't look at it.
	Schema key.Schema
	// Acted is false where the agent does nothing by it: it is there so that
	// values for Cilium can be used as they are.
	Acted bool
}

// Keys are all that a file may have, in the order of the documentation, but those that only a Helm chart acts on.
func Keys() (keys []Key) {
	base := Default()
	for _, s := range settings() {
		keys = append(keys, Key{Name: s.Name, Default: s.Get(base), Schema: s.Schema, Acted: true})
	}
	for _, f := range features() {
		keys = append(keys, Key{Name: f.key, Schema: f.schema()})
		for _, detail := range strings.Fields(f.details) {
			keys = append(keys, Key{Name: detail})
		}
	}
	return keys
}

// ChartKeys are those that only a Helm chart acts on, in Cilium's and in this one; a subtree ends in ".*".
func ChartKeys() []string { return strings.Fields(chartKeys()) }

// schema takes the values that leave a feature off.
func (f feature) schema() key.Schema {
	var values []any
	for _, off := range strings.Fields(f.off) {
		switch off {
		case "empty":
			values = append(values, "", []any{}, key.Schema{})
		case "true", "false":
			values = append(values, off == "true", off)
		case "0":
			values = append(values, 0, off)
		default:
			values = append(values, off)
		}
	}
	s := key.Schema{"enum": values}
	if f.why == "" {
		return s
	}
	return key.Explained(s, strings.ReplaceAll(f.off, " ", " or ")+" ("+f.why+")")
}
