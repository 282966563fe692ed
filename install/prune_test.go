package install

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"myelin/chart"
	"myelin/kube"
)

// TestMost renders all values that the chart is tested with: an object that most doesn't have stays when values change.
func TestMost(t *testing.T) {
	const folder = "../chart/testdata/"
	files, err := filepath.Glob(folder + "*.values.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%q, %v", files, err)
	}
	render := func(values map[string]any) map[kube.Ref]bool {
		all, err := chart.Render(chart.Options{Release: release, Namespace: "kube-system", Version: "1.2.3",
			Service: release, Values: values})
		if err != nil {
			t.Fatal(err)
		}
		refs := map[kube.Ref]bool{}
		for _, object := range lasting(all) {
			refs[kube.RefOf(object.Content)] = true
		}
		return refs
	}
	have := render(most())
	for _, file := range files {
		data, err := os.ReadFile(file)
		values := map[string]any{}
		if err := errors.Join(err, yaml.Unmarshal(data, &values)); err != nil {
			t.Fatal(err)
		}
		for r := range render(values) {
			if !have[r] && r.Kind != "ServiceAccount" && r.Kind != "Certificate" {
				t.Errorf("%s: %s would stay", strings.TrimPrefix(file, folder), r)
			}
		}
	}
}

// TestPrune removes what values of before had.
func TestPrune(t *testing.T) {
	w := start(t)
	w.apply(reachable(map[string]any{
		"encryption": map[string]any{"enabled": true, "type": "wireguard",
			"wireguard": map[string]any{"userspaceFallback": true}},
		"hubble": map[string]any{"relay": map[string]any{"enabled": true, "replicas": 2}}, // as world plays
	}))
	said := w.apply(reachable(nil))
	for _, want := range []string{"DaemonSet kube-system/myelin-wireguard deleted",
		"Deployment kube-system/hubble-relay deleted", "Service kube-system/hubble-relay deleted"} {
		if !slices.Contains(said, want) {
			t.Errorf("no %q: %q", want, said)
		}
	}
}
