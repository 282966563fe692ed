package chart

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"myelin/config"
)

type schema = config.Schema

// valuesSchema is values.schema.json: the agent's keys as config has them, what the chart itself acts on, and what
// Cilium's chart has beside, of which any value will do.
func valuesSchema() ([]byte, error) {
	root := object()
	for _, k := range config.ChartKeys() {
		if err := insert(root, k, nil); err != nil {
			return nil, err
		}
	}
	for _, k := range config.Keys() {
		s := k.Schema
		if k.Name == "myelin.nodeName" || k.Name == "myelin.manifests" {
			s = schema{"const": "",
				"description": "refused: each agent has its own node, and the cluster is read from the API server"}
		}
		if err := insert(root, k.Name, s); err != nil {
			return nil, err
		}
	}
	for key, s := range own() {
		if err := insert(root, key, s); err != nil {
			return nil, err
		}
	}
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "Values of the chart myelin"
	root["properties"].(schema)["global"] = schema{}
	data, err := json.MarshalIndent(root, "", "  ")
	return append(data, '\n'), err
}

func object() schema {
	return schema{"type": "object", "additionalProperties": false, "properties": schema{}}
}

// insert puts a key's schema where it belongs; nil takes anything. A subtree ("x.*") is an object that may have more
// than is known of it.
func insert(at schema, key string, s schema) error {
	parts := strings.Split(key, ".")
	for i, name := range parts {
		if name == "*" {
			at["additionalProperties"] = true
			return nil
		}
		properties, ok := at["properties"].(schema)
		if !ok {
			return fmt.Errorf("schema of %s: %s is a value already", key, strings.Join(parts[:i], "."))
		}
		next, ok := properties[name].(schema)
		if i == len(parts)-1 {
			if s == nil {
				s = schema{}
			}
			properties[name] = s
			return nil
		}
		if !ok || next["properties"] == nil {
			next = object()
			properties[name] = next
		}
		at = next
	}
	return nil
}

// own are the keys that this chart acts on.
func own() map[string]schema {
	text, flag, count := schema{"type": "string"}, schema{"type": "boolean"}, schema{"type": "integer", "minimum": 0}
	words := schema{"type": "array", "items": schema{"type": "string", "minLength": 1}}
	objects, mapping := schema{"type": "array", "items": schema{"type": "object"}}, schema{"type": "object"}
	labels := schema{"type": "object", "additionalProperties": schema{"type": "string"}}
	name := schema{"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
	all := map[string]schema{
		"image": {"type": "object", "additionalProperties": false, "properties": schema{
			"repository": schema{"type": "string", "minLength": 1}, "tag": text,
			"digest":     schema{"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
			"pullPolicy": schema{"enum": []any{"Always", "IfNotPresent", "Never"}}, "useDigest": flag,
			"override": schema{},
		}},
		"imagePullSecrets": {"type": "array", "items": schema{"type": "object",
			"required": []any{"name"}}},
		"terminationGracePeriodSeconds": count, "rollOutCiliumPods": flag, "extraArgs": words, "extraEnv": objects,
		"resources": mapping, "nodeSelector": labels, "tolerations": objects, "affinity": mapping,
		"priorityClassName": text,
		"podAnnotations":    labels, "podLabels": labels, "updateStrategy": strategy("RollingUpdate", "OnDelete"),
		"cgroup.autoMount.enabled": flag, "bpf.autoMount.enabled": flag, "securityContext.privileged": flag,
		"securityContext.capabilities.ciliumAgent": words, "securityContext.capabilities.mountCgroup": words,
		"securityContext.capabilities.nodeCleanup": words,
		"k8sServiceHost": config.ServiceHost(true),
		"rbac.create":    flag, "tls.secretsNamespace.create": flag,
		"nodeCleanup.enabled": flag, "nodeCleanup.force": flag,
		"nodeCleanup.patience": {"type": "string", "pattern": "^([0-9.]+(ns|us|ms|s|m|h))+$"},
		"operator.enabled":     flag, "operator.migrateFromCilium": flag, "operator.replicas": count,
		"operator.port":      {"type": "integer", "minimum": 1, "maximum": 65535},
		"operator.resources": mapping, "operator.nodeSelector": labels, "operator.tolerations": objects,
		"operator.affinity":          mapping,
		"operator.priorityClassName": text, "operator.podAnnotations": labels, "operator.podLabels": labels,
		"operator.podDisruptionBudget": budget(),
		"commonLabels": {"type": "object", "additionalProperties": schema{"type": "string"},
			"patternProperties": schema{"^(k8s-app|app\\.kubernetes\\.io/.*)$": schema{
				"const": "a label of another name, since this one is the chart's own"}}},
		"operator.updateStrategy": strategy("RollingUpdate", "Recreate"),
		"operator.extraArgs":      words, "operator.extraEnv": objects,
	}
	maps.Copy(all, hubbleKeys())
	maps.Copy(all, proxyKeys())
	maps.Copy(all, wireguardKeys())
	for _, account := range []string{"cilium", "operator", "envoy", "wireguard", "relay", "ui"} {
		at := "serviceAccounts." + account + "."
		all[at+"create"], all[at+"automount"], all[at+"name"], all[at+"annotations"] = flag, flag, name, labels
	}
	for _, at := range []string{"prometheus.serviceMonitor.", "operator.prometheus.serviceMonitor.",
		"hubble.metrics.serviceMonitor.", "hubble.relay.prometheus.serviceMonitor."} {
		all[at+"enabled"], all[at+"namespace"], all[at+"jobLabel"] = flag, text, text
		all[at+"labels"], all[at+"annotations"] = labels, labels
		all[at+"interval"], all[at+"scrapeTimeout"] = text, text
		all[at+"relabelings"], all[at+"metricRelabelings"] = objects, objects
		all[at+"trustCRDsExist"] = flag
	}
	all["operator.prometheus.enabled"] = flag
	all["operator.prometheus.port"] = schema{"type": "integer", "minimum": 1, "maximum": 65535}
	for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
		all[probe+".periodSeconds"], all[probe+".failureThreshold"] = count, count
	}
	return all
}

// budget is a PodDisruptionBudget.
func budget() schema {
	return schema{"type": "object", "additionalProperties": false, "properties": schema{
		"enabled": schema{"type": "boolean"}, "minAvailable": share(), "maxUnavailable": share(),
		"unhealthyPodEvictionPolicy": schema{"enum": []any{nil, "", "IfHealthyBudget", "AlwaysAllow"}},
	}}
}

// share is a number of pods, or a part of all, or nothing.
func share() schema {
	return schema{"anyOf": []any{schema{"type": "integer", "minimum": 0},
		schema{"type": "string", "pattern": "^[0-9]+%$"}, schema{"type": "null"}}}
}

// strategy is of a DaemonSet's or a Deployment's update.
func strategy(types ...any) schema {
	share := schema{"type": "string", "pattern": "^[0-9]+%$"}
	some := schema{"anyOf": []any{schema{"type": "integer", "minimum": 0}, share}}
	return schema{"type": "object", "additionalProperties": false, "properties": schema{
		"type": schema{"enum": types},
		"rollingUpdate": schema{"type": []any{"object", "null"}, "additionalProperties": false, "properties": schema{
			"maxSurge": some, "maxUnavailable": some,
		}},
	}}
}

// checkValues holds values, the chart's own among them, against the schema. Its error has one problem a line: "KEY:
// reason".
func checkValues(values map[string]any) error {
	s, err := compiled()
	if err != nil {
		return fmt.Errorf("read the schema of values: %w", err)
	}
	return check(s, values)
}

func compiled() (*jsonschema.Schema, error) {
	const name = "values.schema.json"
	text, err := files.ReadFile(root + "/" + name)
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(name, doc); err != nil {
		return nil, err
	}
	return c.Compile(name)
}

func check(s *jsonschema.Schema, values map[string]any) error {
	// A second reading makes of any Go value what JSON makes of it.
	data, err := json.Marshal(values)
	if err != nil {
		return fmt.Errorf("check values: %w", err)
	}
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("check values: %w", err)
	}
	err = s.Validate(instance)
	var bad *jsonschema.ValidationError
	if !errors.As(err, &bad) {
		return err
	}
	var problems []error
	said := map[string]bool{}
	for _, leaf := range leaves(bad) {
		for _, problem := range explain(leaf, instance) {
			if text := problem.Error(); !said[text] {
				said[text] = true
				problems = append(problems, problem)
			}
		}
	}
	return errors.Join(problems...)
}

// explain is what the agent says of a value that the schema refuses: it knows more of it. What is the chart's alone
// the schema says.
func explain(leaf *jsonschema.ValidationError, values any) []error {
	at := leaf.InstanceLocation
	if unknown, ok := leaf.ErrorKind.(*kind.AdditionalProperties); ok {
		var list []error
		for _, name := range unknown.Properties {
			key := strings.Join(append(slices.Clone(at), name), ".")
			list = append(list, agentSays(key, nil, "unknown key"))
		}
		return list
	}
	key := strings.Join(at, ".")
	if key == "" {
		key = "values"
	}
	text := leaf.ErrorKind.LocalizedString(message.NewPrinter(language.English))
	return []error{agentSays(key, valueAt(values, at), text)}
}

// agentSays is the problem with a key: what config says, or else what the schema does.
func agentSays(key string, value any, schemaSays string) error {
	data, err := json.Marshal(value)
	if err == nil {
		err = config.CheckValue(key, data)
	}
	if err == nil {
		return fmt.Errorf("%s: %s", key, schemaSays)
	}
	return fmt.Errorf("%s: %w", key, err)
}

// valueAt is what is at a place of values; items of lists are validated as a part of their list, so that they have
// none.
func valueAt(values any, at []string) any {
	for _, name := range at {
		m, ok := values.(map[string]any)
		if !ok {
			return nil
		}
		values = m[name]
	}
	return values
}

// leaves are the errors that no other ones explain.
func leaves(e *jsonschema.ValidationError) (list []*jsonschema.ValidationError) {
	if len(e.Causes) == 0 {
		return []*jsonschema.ValidationError{e}
	}
	for _, cause := range e.Causes {
		list = append(list, leaves(cause)...)
	}
	return list
}
