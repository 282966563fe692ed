package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
	kyaml "sigs.k8s.io/yaml"
)

// mergeDefaults puts values over defaults, which are YAML: maps key by key, all else as a whole. nil deletes a key.
func mergeDefaults(defaults []byte, over map[string]any) (map[string]any, error) {
	base := map[string]any{}
	if err := kyaml.Unmarshal(defaults, &base); err != nil {
		return nil, fmt.Errorf("read values: %w", err)
	}
	return merge(base, over), nil
}

func merge(base, over map[string]any) map[string]any {
	out := maps.Clone(base)
	for key, v := range over {
		inner, isMap := v.(map[string]any)
		have, both := out[key].(map[string]any)
		switch {
		case v == nil:
			delete(out, key)
		case isMap && both:
			out[key] = merge(have, inner)
		case isMap:
			out[key] = merge(map[string]any{}, inner)
		default:
			out[key] = v
		}
	}
	return out
}

// Values reads files of values, later ones over earlier ones, and puts settings "a.b=VALUE" over them. VALUE is read as
// YAML: true is a boolean, "{a, b}" and "[a, b]" lists, null takes a key away.
func Values(paths, settings []string) (map[string]any, error) {
	all := map[string]any{}
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			return nil, fmt.Errorf("read values: %w", err)
		}
		one := map[string]any{}
		if err := kyaml.UnmarshalStrict(data, &one); err != nil {
			return nil, fmt.Errorf("read values of %s: %w", p, err)
		}
		all = Over(all, one)
	}
	for _, s := range settings {
		one, err := setting(s)
		if err != nil {
			return nil, err
		}
		all = Over(all, one)
	}
	return all, nil
}

// Over puts values over others, key by key. A nil stays, to take away what the chart has.
func Over(base, over map[string]any) map[string]any {
	out := maps.Clone(base)
	for key, v := range over {
		inner, isMap := v.(map[string]any)
		have, both := out[key].(map[string]any)
		if isMap && both {
			v = Over(have, inner)
		}
		out[key] = v
	}
	return out
}

func setting(s string) (map[string]any, error) {
	key, text, ok := strings.Cut(s, "=")
	if !ok || key == "" || strings.Contains(key, "..") || strings.HasPrefix(key, ".") || strings.HasSuffix(key, ".") {
		return nil, fmt.Errorf("--set %q: want KEY=VALUE, such as ipv6.enabled=true", s)
	}
	var v any = text
	if strings.HasPrefix(text, "{") && strings.HasSuffix(text, "}") { // as with helm --set
		text = "[" + text[1:len(text)-1] + "]"
	}
	var node yaml.Node
	if err := yaml.Unmarshal([]byte(text), &node); err == nil && text != "" {
		data, err := kyaml.YAMLToJSON([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("--set %s: %w", s, err)
		}
		d := json.NewDecoder(bytes.NewReader(data))
		if err := d.Decode(&v); err != nil {
			return nil, fmt.Errorf("--set %s: %w", s, err)
		}
	}
	parts := strings.Split(key, ".")
	for i := len(parts) - 1; i > 0; i-- {
		v = map[string]any{parts[i]: v}
	}
	return map[string]any{parts[0]: v}, nil
}
