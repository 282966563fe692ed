package random

import (
	"bytes"
	"encoding/json"
	"fmt"

	"sigs.k8s.io/yaml"

	"myelin/test/policy/reference"
)

// Text is a world as YAML, and in comments above it the node that it is seen from,
// and what the reference says of probes.
func Text(w *reference.World, probes ...reference.Probe) (string, error) {
	var text bytes.Buffer
	fmt.Fprintf(&text, "# node: %s\n# cluster: %s\n# nodes are matched by CIDR: %t\n", w.Node, w.Cluster, w.CIDRNodes)
	for _, p := range probes {
		fmt.Fprintf(&text, "# probe: %s -> %s proto %d port %d\n", p.Src, p.Dst, p.Proto, p.Port)
		for direction, v := range map[string]reference.Verdict{"egress": w.Egress(p), "ingress": w.Ingress(p)} {
			fmt.Fprintf(&text, "#   %s: allowed %t: %s\n", direction, v.Allowed, v.Why)
		}
	}
	for _, object := range objects(w) {
		document, err := document(object)
		if err != nil {
			return "", fmt.Errorf("print a world: %w", err)
		}
		fmt.Fprintf(&text, "---\n%s", document)
	}
	return text.String(), nil
}

func objects(w *reference.World) []any {
	var all []any
	all = add(all, w.Nodes)
	all = add(all, w.Namespaces)
	all = add(all, w.Pods)
	all = add(all, w.Services)
	all = add(all, w.EndpointSlices)
	all = add(all, w.NetworkPolicies)
	all = add(all, w.CiliumNetworkPolicies)
	all = add(all, w.CiliumClusterwideNetworkPolicies)
	all = add(all, w.CIDRGroups)
	return add(all, w.ClusterNetworkPolicies)
}

func add[T any](all []any, list []T) []any {
	for _, object := range list {
		all = append(all, object)
	}
	return all
}

// document is an object as YAML, without the empty fields that no one writes.
func document(object any) ([]byte, error) {
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	prune(fields)
	return yaml.Marshal(fields)
}

// prune removes what the types print though it is empty. Elsewhere empty objects
// mean something: an empty selector selects all.
func prune(value any) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			prune(item)
		}
	case map[string]any:
		for name, field := range v {
			prune(field)
			inner, object := field.(map[string]any)
			unset := object && len(inner) == 0 && (name == "status" || name == "resources" || name == "loadBalancer")
			if field == nil || unset {
				delete(v, name)
			}
		}
	}
}
