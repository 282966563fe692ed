package config

import (
	"fmt"
	"strings"
)

// Schema is a JSON Schema, draft 7, of one value.
type Schema = map[string]any

// Key describes a key of the configuration, for documentation and for the chart's schema.
type Key struct {
	Name    string // dotted; a subtree ends in ".*"
	Default string // as in Setting; empty for what is only accepted
	// Schema takes each value that the file may have there, and few others. It is
	// nil where any will do: the agent doesn't look at it.
	Schema Schema
	// Acted is false where the agent does nothing by it: it is there so that
	// values for Cilium can be used as they are.
	Acted bool
}

// Keys are all that a file may have, in the order of the documentation, but those that only a Helm chart acts on.
func Keys() (keys []Key) {
	base := Default()
	for _, s := range settings() {
		keys = append(keys, Key{Name: s.key, Default: s.get(base), Schema: s.schema, Acted: true})
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
func (f feature) schema() Schema {
	var values []any
	for _, off := range strings.Fields(f.off) {
		switch off {
		case "empty":
			values = append(values, "", []any{}, Schema{})
		case "true", "false":
			values = append(values, off == "true", off)
		case "0":
			values = append(values, 0, off)
		default:
			values = append(values, off)
		}
	}
	s := Schema{"enum": values}
	if f.why == "" {
		return s
	}
	return explained(s, strings.ReplaceAll(f.off, " ", " or ")+" ("+f.why+")")
}

// explained is s with what it wants in words, of which a validator tells its user: what s doesn't take must be
// equal to the words, and so is refused with them. JSON Schema has no messages, and no validator prints
// descriptions.
func explained(s Schema, want string) Schema {
	return Schema{"description": want, "if": Schema{"not": s}, "then": Schema{"const": want}}
}

// Regular expressions of what lists hold.
const (
	objectName = `[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*`
	deviceName = `[^+/: \t*?!,]{1,15}\+?`
)

// pattern is of text; want is what it says in words.
func pattern(expression, want string) Schema {
	return explained(Schema{"type": "string", "pattern": expression}, want)
}

func whole(low, high int64) Schema {
	return Schema{"type": "integer", "minimum": low, "maximum": high}
}

func listOf(item Schema) Schema { return Schema{"type": "array", "items": item} }

// texts are a list, or text with commas or blanks between; want is what one of them is.
func texts(one, want string) Schema {
	text := func(expression string) Schema { return Schema{"type": "string", "pattern": expression} }
	list, words := listOf(text("^("+one+")$")), text(fmt.Sprintf("^[ ,]*((%s)[ ,]+)*(%s)?$", one, one))
	return explained(Schema{"anyOf": []any{list, words}}, "a list of "+want)
}

// portText is what a port may be in quotes.
func portText(low int64) string {
	if low == 0 {
		return "^[0-9]*$"
	}
	return "^[0-9]+$"
}

func anyOf(values []string) (list []any) {
	for _, v := range values {
		list = append(list, v)
	}
	return list
}
