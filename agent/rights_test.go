package agent

import (
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"myelin/config"
)

// TestRights: the agent's ClusterRole has what the features need, and nothing
// else. The chart has a copy of the file.
func TestRights(t *testing.T) {
	text, err := os.ReadFile("../kube/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var role struct {
		Rules []struct{ APIGroups, Resources, Verbs []string }
	}
	if err := yaml.Unmarshal(text, &role); err != nil {
		t.Fatal(err)
	}
	have, need := map[string]bool{}, map[string]string{}
	for _, r := range role.Rules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					have[strings.Join([]string{verb, group, resource}, " ")] = true
				}
			}
		}
	}
	for _, f := range agentWith(config.Default()).list {
		for _, r := range f.Rights {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					need[strings.Join([]string{verb, r.Group, resource}, " ")] = f.Name
				}
			}
		}
	}
	for right, feature := range need {
		if !have[right] {
			t.Errorf("%s needs %q, which kube/role.yaml does not have", feature, right)
		}
	}
	for right := range have {
		if need[right] == "" {
			t.Errorf("kube/role.yaml has %q, which no feature needs", right)
		}
	}
}

// TestFeatureNames: the names by which the start reports are unique.
func TestFeatureNames(t *testing.T) {
	var names []string
	for _, f := range agentWith(config.Default()).list {
		if f.Name == "" || slices.Contains(names, f.Name) {
			t.Errorf("the name %q is empty or taken", f.Name)
		}
		names = append(names, f.Name)
	}
}
