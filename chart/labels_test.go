package chart

import (
	"maps"
	"strings"
	"testing"
)

func render(t *testing.T, values map[string]any) []Object {
	t.Helper()
	objects, err := Render(
		Options{Release: "myelin", Namespace: "kube-system", Version: "1.2.3", Service: "Helm", Values: values},
	)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// at is what is at a path of an object; nil if there is nothing.
func at(v any, path string) any {
	for name := range strings.SplitSeq(path, "/") {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

// TestLabels: each object, and each pod, has the labels that Kubernetes recommends, and those of commonLabels.
func TestLabels(t *testing.T) {
	for name, values := range sets(t) {
		for _, o := range render(t, values) {
			places := []string{"metadata/labels"}
			if at(o.Content, "spec/template") != nil {
				places = append(places, "spec/template/metadata/labels")
			}
			for _, place := range places {
				labels, _ := at(o.Content, place).(map[string]any)
				want := map[string]any{
					"app.kubernetes.io/part-of": "myelin", "app.kubernetes.io/instance": "myelin",
					"app.kubernetes.io/version":    "1.2.3",
					"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/name": labels["app.kubernetes.io/name"],
					"app.kubernetes.io/component": labels["app.kubernetes.io/component"],
				}
				common, _ := values["commonLabels"].(map[string]any)
				maps.Copy(want, common)
				for key, value := range want {
					if labels[key] != value || value == nil {
						t.Errorf(
							"%s: %s %v: %s: label %s is %v, want %v",
							name,
							o.Content["kind"],
							at(o.Content, "metadata/name"),
							place,
							key,
							labels[key],
							value,
						)
					}
				}
			}
		}
	}
}

// TestSelectors: what selects pods by labels selects those of its own workload, and no others.
func TestSelectors(t *testing.T) {
	objects := render(t, map[string]any{
		"prometheus": map[string]any{
			"enabled": true,
		}, "operator": map[string]any{"prometheus": map[string]any{"enabled": true}},
	})
	for _, o := range objects {
		selector, _ := at(o.Content, "spec/selector/matchLabels").(map[string]any)
		if selector == nil {
			selector, _ = at(o.Content, "spec/selector").(map[string]any) // a Service's
		}
		if selector == nil {
			continue
		}
		var found []string
		for _, p := range objects {
			labels, _ := at(p.Content, "spec/template/metadata/labels").(map[string]any)
			fits := labels != nil
			for key, value := range selector {
				fits = fits && labels[key] == value
			}
			if fits {
				found = append(found, at(p.Content, "metadata/name").(string))
			}
		}
		want := strings.Replace(at(o.Content, "metadata/name").(string), "myelin-agent", "myelin", 1)
		if len(found) != 1 || found[0] != want {
			t.Errorf("%s %s selects the pods of %v, want %s", o.Content["kind"], at(o.Content, "metadata/name"),
				found, want)
		}
	}
}

// TestBudget: several operators have a PodDisruptionBudget, one has none, since it would keep a node from being
// drained.
func TestBudget(t *testing.T) {
	budget := func(operator map[string]any) (found []any) {
		for _, o := range render(t, map[string]any{"operator": operator}) {
			if o.Content["kind"] == "PodDisruptionBudget" {
				found = append(found, o.Content["spec"])
			}
		}
		return found
	}
	pdb := func(values map[string]any) map[string]any { return map[string]any{"podDisruptionBudget": values} }
	if list := budget(nil); len(list) != 1 || at(list[0], "maxUnavailable") != 1.0 ||
		at(list[0], "minAvailable") != nil {
		t.Errorf("by default: %v", list)
	}
	if list := budget(pdb(map[string]any{"minAvailable": "50%"})); len(list) != 1 ||
		at(list[0], "minAvailable") != "50%" ||
		at(list[0], "maxUnavailable") != nil {
		t.Errorf("minAvailable 50%%: %v", list)
	}
	for name, operator := range map[string]map[string]any{
		"one operator": {"replicas": 1}, "off": pdb(map[string]any{"enabled": false}),
		"no operator": {"enabled": false},
	} {
		if list := budget(operator); len(list) != 0 {
			t.Errorf("%s: %v", name, list)
		}
	}
	for key, values := range map[string]map[string]any{
		"operator.podDisruptionBudget.maxUnavailable": {"operator": pdb(map[string]any{"maxUnavailable": "some"})},
		"commonLabels.app.kubernetes.io/name: value must be 'a label of another " +
			"name": {"commonLabels": map[string]any{"app.kubernetes.io/name": "mine"}},
	} {
		_, err := Render(Options{Release: "myelin", Namespace: "kube-system", Version: "1.2.3", Values: values})
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
}
