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

// TestLab builds the program and runs a lab from the command line, from up to down.
func TestLab(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	dir := t.TempDir()
	bin, manifests := filepath.Join(dir, "myelin"), filepath.Join(dir, "lab.yaml")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	if err := os.WriteFile(manifests, []byte(hostPod), 0o644); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("cli%d", os.Getpid())
	run := func(status int, args ...string) string {
		t.Helper()
		cmd := exec.Command(bin, append([]string{"lab", "--dir", filepath.Join(dir, "labs"), "-n", name}, args...)...)
		cmd.Stdin = strings.NewReader("input\n")
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if got := cmd.ProcessState.ExitCode(); got != status {
			t.Errorf("lab %s: status %d, want %d: %s", strings.Join(args, " "), got, status, out)
		}
		return string(out)
	}
	t.Cleanup(func() { run(0, "down") })
	contains := func(got string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("output has no %q:\n%s", w, got)
			}
		}
	}
	more := func(name, command string) string {
		t.Helper()
		file := filepath.Join(dir, name+".yaml")
		yaml := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: demo}\n"+
			"spec: {nodeName: node1, hostNetwork: true, containers: [{name: c, command: [sh, -c, %q]}]}\n", name, command)
		if err := os.WriteFile(file, []byte(yaml), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	contains(run(0, "up", "--no-agent", "-f", manifests), "start pods\n", "┌─ node1 ─", "demo/web Running")
	contains(run(1, "up", "--no-agent", "-f", manifests), "exists")
	contains(run(0, "list"), name+"\n")
	contains(run(0, "exec", "world", "--", "myelin", "lab", "call", "--wait", "5s", "http://192.168.9.1:8080/"), "server  demo/web\n")
	contains(run(0, "exec", "web", "myelin", "lab", "call", "--wait", "5s", "udp://[2001:db8:64::1]:7001"), "from [2001:db8:64::1]:7001")
	contains(run(0, "exec", "node1", "cat"), "input\n")
	run(7, "exec", "node1", "--", "sh", "-c", "exit 7")
	run(128+15, "exec", "node1", "--", "sh", "-c", "kill -TERM $$")
	contains(run(1, "exec", "nobody", "true"), "no pod \"nobody\"")
	var st lab.Status
	if err := json.Unmarshal([]byte(run(0, "status", "-o", "json")), &st); err != nil || st.Name != name || len(st.Nodes) != 1 {
		t.Errorf("status %+v: %v", st, err)
	}
	run(0, "delete", "demo/web")
	contains(run(1, "exec", "web", "true"), "no pod")
	contains(run(0, "apply", "-f", manifests), "node/node1 unchanged\npod/demo/web created\n")
	contains(run(0, "apply", "-f", manifests), "node/node1 unchanged\npod/demo/web unchanged\n")
	contains(run(0, "apply", "-f", more("a", "sleep 1000"), "-f", more("b", "sleep 1000")), "pod/demo/a created\npod/demo/b created\n")
	contains(run(1, "apply", "-f", manifests, "-f", manifests), "lab.yaml too")
	run(0, "delete", "-f", more("a", ""), "-f", more("b", ""))
	contains(run(0, "status"), "demo/web Running")
	run(0, "down")
	contains(run(1, "up", "--no-agent", "-f", manifests, "-f", more("c", "echo no config; exit 7")),
		"demo/web Running", "pod demo/c crash-loops: container c was restarted ", "last status 7", "its log ends: no config", "not all of it works")
	run(0, "down")
	contains(run(1, "status"), "there is no lab "+name)
	contains(run(1, "up"), "filename")
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
