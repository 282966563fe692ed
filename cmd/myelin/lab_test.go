package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"myelin/lab"
)

// hostPod is a node with a pod on its own network: no agent and no plugin are needed for it.
const hostPod = `
apiVersion: v1
kind: Node
metadata: {name: node1}
status: {addresses: [{type: InternalIP, address: 192.168.9.1}, {type: InternalIP, address: "fd00:9::1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: demo}
spec:
  nodeName: node1
  hostNetwork: true
  containers: [{name: web, command: [myelin, lab, serve]}]
`

// labRun runs `myelin lab` for a lab of its own.
type labRun struct {
	*testing.T
	dir, bin, name, manifests string
}

func newLabRun(t *testing.T) *labRun {
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	dir := t.TempDir()
	r := &labRun{t, dir, filepath.Join(dir, "myelin"), fmt.Sprintf("cli%d", os.Getpid()), filepath.Join(dir, "lab.yaml")}
	if out, err := exec.Command("go", "build", "-o", r.bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	if err := os.WriteFile(r.manifests, []byte(hostPod), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.run(0, "down") })
	return r
}

func (r *labRun) run(status int, args ...string) string {
	r.Helper()
	cmd := exec.Command(r.bin, append([]string{"lab", "--dir", filepath.Join(r.dir, "labs"), "-n", r.name}, args...)...)
	cmd.Stdin = strings.NewReader("input\n")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != status {
		r.Errorf("lab %s: status %d, want %d: %s", strings.Join(args, " "), got, status, out)
	}
	return string(out)
}

func (r *labRun) contains(got string, want ...string) {
	r.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			r.Errorf("output has no %q:\n%s", w, got)
		}
	}
}

// pod writes a file with a Pod on the node's network.
func (r *labRun) pod(name, command string) string {
	r.Helper()
	file := filepath.Join(r.dir, name+".yaml")
	yaml := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: demo}\n"+
		"spec: {nodeName: node1, hostNetwork: true, containers: [{name: c, command: [sh, -c, %q]}]}\n", name, command)
	if err := os.WriteFile(file, []byte(yaml), 0o644); err != nil {
		r.Fatal(err)
	}
	return file
}

// TestLab builds the program and runs a lab from the command line, from up to down.
func TestLab(t *testing.T) {
	r := newLabRun(t)
	r.contains(r.run(0, "up", "--no-agent", "-f", r.manifests), "start pods\n", "┌─ node1 ─", "demo/web Running")
	r.contains(r.run(1, "up", "--no-agent", "-f", r.manifests), "exists")
	r.contains(r.run(0, "list"), r.name+"\n")
	r.contains(r.run(0, "exec", "world", "--", "myelin", "lab", "call", "--wait", "5s", "http://192.168.9.1:8080/"), "server  demo/web\n")
	r.contains(r.run(0, "exec", "web", "myelin", "lab", "call", "--wait", "5s", "udp://[2001:db8:64::1]:7001"), "from [2001:db8:64::1]:7001")
	r.contains(r.run(0, "exec", "node1", "cat"), "input\n")
	r.run(7, "exec", "node1", "--", "sh", "-c", "exit 7")
	r.run(128+15, "exec", "node1", "--", "sh", "-c", "kill -TERM $$")
	r.contains(r.run(1, "exec", "nobody", "true"), "no pod \"nobody\"")
	var st lab.Status
	if err := json.Unmarshal([]byte(r.run(0, "status", "-o", "json")), &st); err != nil || st.Name != r.name || len(st.Nodes) != 1 {
		t.Errorf("status %+v: %v", st, err)
	}
	r.contains(r.run(0, "delete", "demo/web"), "pod/demo/web deleted\n")
	r.contains(r.run(1, "exec", "web", "true"), "no pod")
	r.contains(r.run(0, "apply", "-f", r.manifests), "node/node1 unchanged\npod/demo/web created\n")
	r.contains(r.run(0, "status"), "demo/web Running")
	r.run(0, "down")
	r.contains(r.run(1, "status"), "there is no lab "+r.name)
	r.contains(r.run(1, "up"), "filename")
}

// Commands take several files, apply says what became of each object, and up fails where a pod crash-loops.
func TestLabFiles(t *testing.T) {
	r := newLabRun(t)
	a, b, c := r.pod("a", "sleep 1000"), r.pod("b", "sleep 1000"), r.pod("c", "echo no config; exit 7")
	r.run(0, "up", "--no-agent", "-f", r.manifests)
	r.contains(r.run(0, "apply", "-f", r.manifests), "node/node1 unchanged\npod/demo/web unchanged\n")
	r.contains(r.run(0, "apply", "-f", a, "-f", b), "pod/demo/a created\npod/demo/b created\n")
	r.contains(r.run(1, "apply", "-f", r.manifests, "-f", r.manifests), "lab.yaml too")
	r.contains(r.run(0, "status"), "demo/a Running", "demo/b Running")
	r.contains(r.run(0, "delete", "-f", a, "-f", b, "-f", c), "pod/demo/a deleted\npod/demo/b deleted\n")
	r.contains(r.run(1, "exec", "b", "true"), "no pod")
	r.run(0, "down")
	r.contains(r.run(1, "up", "--no-agent", "-f", r.manifests, "-f", c),
		"demo/web Running", "pod demo/c crash-loops: container c was restarted ", "last status 7", "its log ends: no config",
		"not all of it works")
}

func TestParseSet(t *testing.T) {
	got, err := parseSet([]string{"a.b=true", "c=1500", "d={x,y}", "e=10.0.0.0/8", "f="})
	want := map[string]any{"a.b": true, "c": 1500, "d": []string{"x", "y"}, "e": "10.0.0.0/8", "f": ""}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"a", "=1"} {
		if _, err := parseSet([]string{bad}); err == nil {
			t.Errorf("--set %s is taken", bad)
		}
	}
}
