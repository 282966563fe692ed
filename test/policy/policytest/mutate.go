package policytest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// twice stands for a value that a text has two times, under one name.
type twice struct{ value any }

// MarshalJSON is never called for the value itself: text writes it.
func (twice) MarshalJSON() ([]byte, error) { return nil, fmt.Errorf("a value that is there twice") }

// text is JSON of a value, with what is there twice.
func text(value any) string {
	switch v := value.(type) {
	case map[string]any:
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			name, _ := json.Marshal(k)
			if t, ok := v[k].(twice); ok {
				parts = append(parts, string(name)+":"+text(t.value), string(name)+":"+text(emptied(t.value)))
				continue
			}
			parts = append(parts, string(name)+":"+text(v[k]))
		}
		return "{" + strings.Join(parts, ",") + "}"
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = text(v[i])
		}
		return "[" + strings.Join(parts, ",") + "]"
	}
	data, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// emptied is a value without what is in it.
func emptied(value any) any {
	switch value.(type) {
	case map[string]any:
		return map[string]any{}
	case []any:
		return []any{}
	}
	return value
}

// Mutation is an object that differs from a good one in one place.
type Mutation struct {
	// Name is as in "spec.ingress[0].from = null".
	Name string
	// Raw is the object as JSON.
	Raw string
}

// Kinds are those that have a good object in testdata.
func Kinds() []string {
	return []string{"NetworkPolicy", "CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy", "ClusterNetworkPolicy",
		"CiliumCIDRGroup"}
}

// Good is the good object of a kind, as YAML, which dir, testdata/rejected of this
// package, has.
func Good(t testing.TB, dir, kind string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, kind+".yaml"))
	check(t, err)
	return text
}

// change is one that nothing makes by itself: the value of a field of an object.
type change struct {
	Kind, Path string
	Value      any
}

// Mutations are the good object of a kind with each of its values in turn replaced
// by others, removed, or there twice, and with a field more; and those of
// more.yaml.
func Mutations(t testing.TB, dir, kind string) []Mutation {
	t.Helper()
	var object map[string]any
	check(t, yaml.Unmarshal(Good(t, dir, kind), &object))
	out := mutations(object)
	data, err := os.ReadFile(filepath.Join(dir, "more.yaml"))
	var more []change
	check(t, err, yaml.Unmarshal(data, &more))
	for _, c := range more {
		if c.Kind != kind {
			continue
		}
		var object map[string]any
		steps := strings.FieldsFunc(c.Path, func(r rune) bool { return strings.ContainsRune(".[]", r) })
		check(t, yaml.Unmarshal(Good(t, dir, kind), &object), place(object, steps, c.Value))
		out = append(out, Mutation{c.Path + " = " + text(c.Value), text(object)})
	}
	return out
}

// place puts a value at a path.
func place(in any, path []string, value any) error {
	var next any
	var set func(any)
	switch v := in.(type) {
	case map[string]any:
		next, set = v[path[0]], func(x any) { v[path[0]] = x }
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i >= len(v) {
			return fmt.Errorf("there is no item %s", path[0])
		}
		next, set = v[i], func(x any) { v[i] = x }
	default:
		return fmt.Errorf("%s is in nothing", path[0])
	}
	if len(path) == 1 {
		set(value)
		return nil
	}
	return place(next, path[1:], value)
}

// mutations are an object with each of its values in turn replaced by others,
// removed, or there twice, and with a field more.
func mutations(root map[string]any) (out []Mutation) {
	emit := func(at, how string) { out = append(out, Mutation{strings.TrimPrefix(at, ".") + " " + how, text(root)}) }
	var walk func(at string, value any, set func(any), remove func())
	walk = func(at string, value any, set func(any), remove func()) {
		for _, other := range others(value) {
			set(other)
			emit(at, "= "+text(other))
		}
		if remove != nil {
			remove()
			emit(at, "is not there")
			set(twice{value})
			emit(at, "is there twice")
		}
		set(value)
		switch v := value.(type) {
		case map[string]any:
			v["bogus"] = "x"
			emit(at, "has another field")
			delete(v, "bogus")
			for _, k := range slices.Sorted(maps.Keys(v)) {
				walk(at+"."+k, v[k], func(x any) { v[k] = x }, func() { delete(v, k) })
			}
		case []any:
			for i := range v {
				walk(fmt.Sprintf("%s[%d]", at, i), v[i], func(x any) { v[i] = x }, nil)
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(root)) {
		if k != "apiVersion" && k != "kind" && k != "metadata" {
			walk("."+k, root[k], func(x any) { root[k] = x }, func() { delete(root, k) })
		}
	}
	root["bogus"] = map[string]any{}
	emit("bogus", "is there")
	delete(root, "bogus")
	return out
}

// others are values to be put in a value's place.
func others(value any) []any {
	switch value.(type) {
	case map[string]any:
		return []any{nil, "x", []any{}, map[string]any{}}
	case []any:
		return []any{nil, "x", []any{}, map[string]any{}, []any{nil}, []any{"!"}, []any{map[string]any{}}}
	case string:
		return []any{nil, "! bad", "", 7, map[string]any{"x": "y"}, []any{"x"}}
	}
	return []any{nil, -1, 70000, 0, "! bad", map[string]any{"x": "y"}}
}
