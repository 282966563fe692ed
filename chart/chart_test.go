package chart

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"sigs.k8s.io/yaml"

	"myelin/config"
)

// updating is whether to write what is generated and compared, by `go test ./chart -args update`.
func updating() bool { return slices.Contains(flag.Args(), "update") }

func same(t *testing.T, file string, got []byte) {
	t.Helper()
	if updating() {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is stale: go test ./chart -args update", file)
	}
}

// TestSchema is first: others read the file.
func TestSchema(t *testing.T) {
	got, err := valuesSchema()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "myelin/values.schema.json", got)
}

// TestRights holds the chart's copies against the files that the sources' own tests run with.
func TestRights(t *testing.T) {
	for copied, source := range map[string]string{"agent-role.yaml": "../kube/role.yaml",
		"operator-role.yaml":      "../operator/role.yaml",
		"agent-secrets-role.yaml": "../kube/secrets-role.yaml"} {
		got, err := os.ReadFile(filepath.Join("myelin/files", copied))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("files/%s differs from %s", copied, source)
		}
	}
}

func TestLint(t *testing.T) {
	for _, values := range sets(t) {
		result := lint.All("myelin", Over(values, map[string]any{"image": map[string]any{"tag": "1.2.3"}}),
			"kube-system", false)
		for _, m := range result.Messages {
			if m.Severity >= support.WarningSev {
				t.Error(m)
			}
		}
	}
}

// sets are values that users may have, by the file of testdata.
func sets(t *testing.T) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	out := map[string]map[string]any{}
	for _, f := range files {
		values, err := Values([]string{f}, nil)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimSuffix(filepath.Base(f), ".values.yaml")] = values
	}
	return out
}

func helmChart(t *testing.T) *chart.Chart {
	t.Helper()
	all, err := Files("1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	var list []*loader.BufferedFile
	for name, data := range all {
		list = append(list, &loader.BufferedFile{Name: name, Data: data})
	}
	c, err := loader.LoadFiles(list)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// helm is what Helm makes of values, by template.
func helm(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	c := helmChart(t)
	release := chartutil.ReleaseOptions{Name: "myelin", Namespace: "kube-system", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, values, release, nil)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, all)
}

// TestTemplate compares what Helm renders with files, and what Render makes with what Helm does.
func TestTemplate(t *testing.T) {
	for name, values := range sets(t) {
		t.Run(name, func(t *testing.T) {
			byHelm, err := helm(t, values)
			if err != nil {
				t.Fatal(err)
			}
			var want []Object
			for _, file := range slices.Sorted(keys(byHelm)) {
				if filepath.Ext(file) != ".yaml" {
					continue
				}
				list, err := split(strings.TrimPrefix(file, "myelin/"), byHelm[file])
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, list...)
			}
			got, err := Render(Options{Release: "myelin", Namespace: "kube-system", Version: "1.2.3", Service: "Helm",
				Values: values})
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(want) {
				t.Fatalf("%d objects, by Helm %d", len(got), len(want))
			}
			var golden bytes.Buffer
			for i := range got {
				if got[i].Template != want[i].Template || got[i].YAML != want[i].YAML {
					t.Errorf("%s: got\n%s\nby Helm\n%s", got[i].Template, got[i].YAML, want[i].YAML)
				}
				golden.WriteString("---\n# " + got[i].Template + "\n" + got[i].YAML)
			}
			same(t, filepath.Join("testdata", name+".golden.yaml"), golden.Bytes())
		})
	}
}

func keys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// TestConfig has the agent read the ConfigMap: it must know all that is in it, and have been told what the user said.
func TestConfig(t *testing.T) {
	for name, values := range sets(t) {
		objects, err := Render(Options{Release: "myelin", Namespace: "kube-system", Version: "1.2.3", Values: values})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(objects, func(o Object) bool { return o.Content["kind"] == "ConfigMap" })
		text := objects[i].Content["data"].(map[string]any)["myelin.yaml"].(string)
		c, err := config.Parse([]byte(text), name)
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, text)
			continue
		}
		if v6, ok := values["ipv6"].(map[string]any); ok && c.IPv6.Enabled != v6["enabled"] {
			t.Errorf("%s: ipv6.enabled is %v", name, c.IPv6.Enabled)
		}
	}
}

// TestDefaults holds the values that the chart repeats against the agent's own.
func TestDefaults(t *testing.T) {
	values, err := os.ReadFile("myelin/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]any{}
	if err := yaml.Unmarshal(values, &all); err != nil {
		t.Fatal(err)
	}
	repeated := 0
	for _, k := range config.Keys() {
		at := any(all)
		for name := range strings.SplitSeq(k.Name, ".") {
			m, _ := at.(map[string]any)
			at = m[name]
		}
		if at == nil || k.Name == "myelin.cgroupRoot" || k.Name == "myelin.sysctlRoot" { // a container's
			continue
		}
		repeated++
		data, err := json.Marshal(at)
		if err != nil || strings.Trim(string(data), `"`) != k.Default {
			t.Errorf("%s is %s, the agent's default %q", k.Name, data, k.Default)
		}
	}
	if repeated < 5 {
		t.Errorf("%d keys have a default of the agent", repeated)
	}
}
