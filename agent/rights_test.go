package agent

import (
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"myelin/config"
)

// TestRights: the agent's ClusterRole, and its Role for Secrets, have what the features need, and nothing
// else. The chart has copies of the files.
func TestRights(t *testing.T) {
	checkRights(t, "../kube/role.yaml", false)
	checkRights(t, "../kube/secrets-role.yaml", true)
}

func checkRights(t *testing.T, file string, namespaced bool) {
	t.Helper()
	text, err := os.ReadFile(file)
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
			if r.Namespaced != namespaced {
				continue
			}
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					need[strings.Join([]string{verb, r.Group, resource}, " ")] = f.Name
				}
			}
		}
	}
	for right, feature := range need {
		if !have[right] {
			t.Errorf("%s needs %q, which %s does not have", feature, right, file)
		}
	}
	for right := range have {
		if need[right] == "" {
			t.Errorf("%s has %q, which no feature needs", file, right)
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
