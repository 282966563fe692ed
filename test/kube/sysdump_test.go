package kube

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"myelin/status/sysdump/sysdumptest"
	"myelin/test/kube/apiserver"
)

// TestSysdump: of a cluster, the archive has Kubernetes' objects, and none of the secrets that are planted among them.
func TestSysdump(t *testing.T) {
	server := apiserver.Start(t)
	const (
		data, password, plain = "c3dlZXQtY2FyYW1lbA==", "tortoise-under-glass", "ladder-in-the-lake"
		private, public       = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=",
			"xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
	)
	apply := func(path, format string, args ...any) {
		t.Helper()
		server.Apply(path, fmt.Appendf(nil, format, args...))
	}
	const system = "/api/v1/namespaces/kube-system"
	apply("/api/v1/namespaces/shop", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"}}`)
	apply(
		system+"/secrets/cilium-ipsec-keys",
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"cilium-ipsec-keys"},"data":{"keys":%q}}`,
		data,
	)
	apply(
		"/api/v1/nodes/n1",
		`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1","annotations":{
		"network.cilium.io/wg-pub-key":%q,"private-key":%q,
		"kubectl.kubernetes.io/last-applied-configuration":"{\"x\":\"%s\"}"}}}`,
		public,
		private,
		plain,
	)
	apply(system+"/configmaps/myelin-config",
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"myelin-config"},
		"data":{"myelin.yaml":"routingMode: tunnel\nmaglev:\n  hashSeed: %s\n"}}`, password)
	const pod = `{"apiVersion":"v1","kind":"Pod","metadata":{
		"name":%q,"labels":{"k8s-app":%q},"annotations":{"note":"it is %s"}},
		"spec":{"nodeName":"n1","containers":[{"name":"c","image":"i:1","args":["--token=%s","%s"],
		"env":[{"name":"DB_PASSWORD","value":%q}]}]}}`
	apply(system+"/pods/myelin-abcde", pod, "myelin-abcde", "myelin", "an agent", password, "--verbose", password)
	apply(system+"/pods/myelin-proxy-abcde", pod, "myelin-proxy-abcde", "myelin-proxy", "a proxy", password,
		"--verbose", password)
	apply("/api/v1/namespaces/shop/pods/web", pod, "web", "web", plain, password, plain, password)

	bin := os.Getenv("MYELIN_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin")
	}
	cmd := exec.CommandContext(
		t.Context(),
		filepath.Join(bin, "myelin"),
		"sysdump",
		"--kubeconfig",
		server.KubeConfig(apiserver.Admin),
		"-f",
		"-",
	)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, &errs)
	}
	checkArchive(t, sysdumptest.UnpackBelowRoot(t, &out), public,
		[]string{data, "sweet-caramel", password, plain, private, apiserver.Admin + `"`})
}

// checkArchive looks for what the archive is for, and for secrets.
func checkArchive(t *testing.T, files map[string]string, public string, secrets []string) {
	t.Helper()
	for name, text := range files {
		for _, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q:\n%s", name, secret, text)
			}
		}
	}
	for name, want := range map[string]string{
		"kubernetes/nodes.json": public, "kubernetes/namespaces.json": `"shop"`,
		"kubernetes/config.json": "routingMode: tunnel",
		"kubernetes/pods.json":   "--verbose", "kubernetes/services.json": `"kubernetes"`,
		"kubernetes/version.json": "gitVersion",
		"failures.txt":            "nodes/n1: pod kube-system/myelin-abcde does not run",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s has no %q:\n%s", name, want, files[name])
		}
	}
	for name := range files {
		if strings.Contains(name, "secret") {
			t.Errorf("there is a file %s", name)
		}
	}
}
