package image

import (
	"os"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"

	"myelin/chart"
	"myelin/install"
)

// TestChartNamesImage: by Helm with the archive, and by `myelin install` of the same build, pods have the image
// that is made; a source tree's chart names none.
func TestChartNamesImage(t *testing.T) {
	for build, tag := range map[string]string{
		"v1.2.3": "1.2.3", "798cca6": "0.0.0-dev-798cca6", "798cca6-dirty": "0.0.0-dev-798cca6-dirty",
		"v0.1.0-12-g798cca6": "0.1.0-12-g798cca6",
	} {
		if got := chart.Version(build); got != tag {
			t.Fatalf("build %s: the image has the tag %s, want %s", build, got, tag)
		}
		want := "image: \"registry.example.org/network/myelin:" + tag + "\""
		path, err := WriteChart(t.TempDir(), "registry.example.org/network/myelin", tag)
		if err != nil {
			t.Fatal(err)
		}
		agent, err := agentOf(path)
		if err != nil || strings.Count(agent, "image: ") != strings.Count(agent, want) ||
			!strings.Contains(agent, want) {
			t.Errorf("build %s: %v: want %s everywhere in\n%s", build, err, want, agent)
		}
		values := map[string]any{"image": map[string]any{"repository": "registry.example.org/network/myelin"}}
		objects, _, err := install.Render(install.Options{Namespace: "kube-system", Version: tag, Values: values})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if strings.Count(o.YAML, "image: \"") != strings.Count(o.YAML, want) {
				t.Errorf("build %s: want %s everywhere in\n%s", build, want, o.YAML)
			}
		}
	}
	if _, err := agentOf("../../chart/myelin"); err == nil || !strings.Contains(err.Error(), "image.tag: must be set") {
		t.Errorf("the source tree's chart: %v", err)
	}
}

// TestChartTwice: the same chart is the same bytes.
func TestChartTwice(t *testing.T) {
	var before string
	for range 2 {
		path, err := WriteChart(t.TempDir(), "myelin", "1.2.3")
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if before != "" && before != string(data) {
			t.Error("made twice it differs")
		}
		before = string(data)
	}
}

// agentOf is what Helm makes of a chart's DaemonSet, with default values.
func agentOf(path string) (string, error) {
	c, err := loader.Load(path)
	if err != nil {
		return "", err
	}
	values, err := chartutil.ToRenderValues(c, nil, chartutil.ReleaseOptions{Name: "myelin", Namespace: "kube-system",
		IsInstall: true}, nil)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(c, values)
	return files["myelin/templates/agent.yaml"], err
}
