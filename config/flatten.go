package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"myelin/config/key"
)

// value is one leaf of the file: a dotted key, and bool, json.Number, string
// or []any.
type value struct {
	key   string
	value any
}

// flatten reads YAML into leaves in the order of their keys. "a: {b: 1}" and
// "a.b: 1" are the same. A null means "as if not there", as it does to Helm.
func flatten(data []byte, file string) ([]value, Problems) {
	// Strict refuses a key that stands twice in one map.
	raw, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		reason := strings.Join(strings.Fields(err.Error()), " ")
		for _, noise := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors: "} {
			reason = strings.TrimPrefix(reason, noise)
		}
		return nil, Problems{{File: file, Reason: reason}}
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var root any
	if err := dec.Decode(&root); err != nil {
		return nil, Problems{{File: file, Reason: err.Error()}}
	}
	if root == nil {
		return nil, nil
	}
	top, ok := root.(map[string]any)
	if !ok {
		return nil, Problems{{File: file, Reason: "is not a map of keys to values"}}
	}
	f := flattener{file: file, seen: map[string]bool{}, known: knownKeys()}
	f.walk("", top)
	return f.values, f.problems
}

type flattener struct {
	file     string
	known    []string
	seen     map[string]bool
	values   []value
	problems Problems
}

func (f *flattener) walk(prefix string, m map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		full := prefix + name
		switch v := m[name].(type) {
		case nil:
			if !f.isKnown(full) && !f.isParent(full) {
				f.unknown(full)
			}
		case map[string]any:
			// A subtree that the agent does not look into may still hold the
			// switch of a feature: go down as far as keys are known.
			switch {
			case f.isParent(full):
				f.walk(full+".", v)
			case f.isKnown(full):
				f.add(full, v)
			default:
				f.unknown(full)
			}
		default:
			switch {
			case f.isKnown(full):
				f.add(full, v)
			case f.isParent(full):
				f.problem(full, "%s is not a map of keys to values", key.Show(v))
			default:
				f.unknown(full)
			}
		}
	}
}

func (f *flattener) add(key string, v any) {
	if f.seen[key] {
		f.problem(key, "is set twice, nested and as a dotted key")
		return
	}
	f.seen[key] = true
	f.values = append(f.values, value{key: key, value: v})
}

func (f *flattener) isKnown(key string) bool {
	return slices.ContainsFunc(f.known, func(k string) bool { return matches(k, key) })
}

// matches reports whether key is the pattern, or in the subtree "x.*".
func matches(pattern, key string) bool {
	sub, tree := strings.CutSuffix(pattern, "*")
	return pattern == key || tree && strings.HasPrefix(key+".", sub)
}

func (f *flattener) isParent(key string) bool {
	return slices.ContainsFunc(f.known, func(k string) bool { return strings.HasPrefix(k, key+".") })
}

func (f *flattener) unknown(key string) {
	reason := "unknown key"
	if hint := suggest(key, f.known); hint != "" {
		reason += ": " + hint
	}
	f.problem(key, "%s", reason)
}

func (f *flattener) problem(key, format string, args ...any) {
	// A key can be any text: it must not break "one problem a line".
	if strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		key = fmt.Sprintf("%q", key)
	}
	f.problems = append(f.problems, Problem{File: f.file, Key: key, Reason: fmt.Sprintf(format, args...)})
}
