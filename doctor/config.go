package doctor

import (
	"encoding/json"
	"fmt"
	"strings"

	"myelin/config"
)

// FromSettings is the configuration that a report of an agent tells of, so that
// the examination needs no file. Only what differs from the default is taken
// over, without names of the cluster.
func FromSettings(settings []config.Setting) (*config.Config, error) {
	root := map[string]any{}
	for _, s := range settings {
		if s.Value == s.Default || s.Key == "myelin.nodeName" || s.Key == "k8sServiceHost" {
			continue
		}
		keys := strings.Split(s.Key, ".")
		at := root
		for _, k := range keys[:len(keys)-1] {
			next, ok := at[k].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[k] = next
			}
			at = next
		}
		at[keys[len(keys)-1]] = typed(s)
	}
	data, err := json.Marshal(root)
	if err != nil {
		return nil, fmt.Errorf("write the agent's settings: %w", err)
	}
	c, err := config.Parse(data, "the agent's settings")
	if err != nil {
		return nil, fmt.Errorf("read the agent's settings: %w", err)
	}
	return c, nil
}

// typed undoes that settings are told as text.
func typed(s config.Setting) any {
	if s.Key == "bpf.vlanBypass" {
		list := []any{}
		for _, id := range strings.Fields(s.Value) {
			list = append(list, json.Number(id))
		}
		return list
	}
	switch strings.Trim(s.Value, "0123456789") {
	case "true", "false":
		return s.Value == "true"
	case "":
		if s.Value != "" {
			return json.Number(s.Value)
		}
	}
	if v := json.Number(s.Value); strings.Contains(s.Key, "Ratio") {
		return v
	}
	return s.Value
}
