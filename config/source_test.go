package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSource: where the cluster is read from, by file and flags; what contradicts
// is refused with file and key.
func TestSource(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		file, kubeConfig, node string
		want                   Source
		name, refused          string
		warned                 []string
	}{
		{want: InCluster},
		{file: "myelin.manifests: /m", want: Directory},
		{file: "loadBalancer.standalone: true", want: NoSource},
		{file: "kubeConfigPath: /k", want: KubeConfig},
		{file: "kubeConfigPath: ''", want: InCluster},
		{file: "myelin.nodeName: a", kubeConfig: "/k", node: "b", want: KubeConfig, name: "a"},
		{kubeConfig: "/k", node: "b", want: KubeConfig, name: "b"},
		{file: "k8sServicePort: 6443", want: InCluster, warned: []string{"k8sServicePort"}},
		{file: "k8sServiceHost: h\nmyelin.manifests: /m", want: Directory, warned: []string{"k8sServiceHost"}},
		{file: "myelin.manifests: /m", kubeConfig: "/k",
			refused: "kubeConfigPath: is set by --kubeconfig, and myelin.manifests by FILE"},
		{file: "kubeConfigPath: /k\nloadBalancer.standalone: true",
			refused: "FILE: kubeConfigPath: is set by FILE, and loadBalancer.standalone is true"},
		{kubeConfig: "k", refused: `--kubeconfig: kubeConfigPath: "k" is not a clean absolute path`},
		{node: "No", refused: "K8S_NODE_NAME: myelin.nodeName: \"No\""},
		{file: "k8sServiceHost: auto", refused: "FILE: k8sServiceHost: \"auto\": is for the Helm chart"},
	} {
		file := filepath.Join(dir, "myelin.yaml")
		if err := os.WriteFile(file, []byte(c.file+"\nautoDirectNodeRoutes: true\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Load(file, Flag{Name: "--kubeconfig", Key: "kubeConfigPath", Value: c.kubeConfig},
			Flag{Name: "K8S_NODE_NAME", Key: "myelin.nodeName", Value: c.node, Weak: true})
		if c.refused != "" {
			if want := strings.ReplaceAll(c.refused, "FILE", file); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: got %v, want %s", c, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		var warned []string
		for _, w := range got.Warnings {
			warned = append(warned, w.Key)
		}
		if got.Source() != c.want || c.name != "" && got.Myelin.NodeName != c.name || !slices.Equal(warned, c.warned) {
			t.Errorf("%+v: got %s, node %s, warnings %v", c, got.Source(), got.Myelin.NodeName, warned)
		}
	}
}
