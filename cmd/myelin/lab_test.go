package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"myelin/lab"
	"myelin/lab/echo"
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
	dir, bin, name, manifests, stdin string
}

func newLabRun(t *testing.T) *labRun {
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	dir := t.TempDir()
	r := &labRun{
		t,
		dir,
		filepath.Join(dir, "myelin"),
		fmt.Sprintf("cli%d", os.Getpid()),
		filepath.Join(dir, "lab.yaml"),
		"input\n",
	}
	copyProgram(t, r.bin)
	if err := os.WriteFile(r.manifests, []byte(hostPod), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.run(0, "down") })
	return r
}

func (r *labRun) run(status int, args ...string) string {
	r.Helper()
	cmd := exec.Command(r.bin, append([]string{"lab", "--dir", filepath.Join(r.dir, "labs"), "-n", r.name}, args...)...)
	cmd.Stdin = strings.NewReader(r.stdin)
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
	r.contains(
		r.run(0, "exec", "world", "--", "myelin", "lab", "call", "--wait", "5s", "http://192.168.9.1:8080/"),
		"server  demo/web\n",
	)
	r.contains(
		r.run(0, "exec", "web", "myelin", "lab", "call", "--wait", "5s", "udp://[2001:db8:64::1]:7001"),
		"from [2001:db8:64::1]:7001",
	)
	r.contains(r.run(0, "exec", "node1", "cat"), "input\n")
	r.run(7, "exec", "node1", "--", "sh", "-c", "exit 7")
	r.run(128+15, "exec", "node1", "--", "sh", "-c", "kill -TERM $$")
	r.contains(r.run(1, "exec", "absent", "true"), "no pod \"absent\"")
	var st lab.Status
	if err := json.Unmarshal([]byte(r.run(0, "status", "-o", "json")), &st); err != nil || st.Name != r.name ||
		len(st.Nodes) != 1 {
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
	r.contains(
		r.run(1, "up", "--no-agent", "-f", r.manifests, "-f", c),
		"demo/web Running",
		"pod demo/c crash-loops: container c was restarted ",
		"last status 7",
		"its log ends: no config",
		"not all of it works",
	)
}

// Standard input is a file as any other, objects are shown as kubectl shows them, and logs are there.
func TestLabObjects(t *testing.T) {
	r := newLabRun(t)
	r.stdin = hostPod
	r.contains(r.run(1, "up", "--no-agent", "--service-cidr", "10.0.0.0", "-f", "-"), "--service-cidr: ")
	r.contains(
		r.run(1, "up", "--no-agent", "--service-cidr", "10.0.0.0/8,10.1.0.0/16", "-f", "-"),
		"want one, or one of each family",
	)
	r.contains(r.run(1, "up", "--no-agent", "--images", "pull", "-f", "-"), `images "pull": want serve or none`)
	r.run(0, "up", "--no-agent", "--service-cidr", "10.50.0.0/16", "-f", "-")
	r.stdin = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {hostNetwork: true, containers: [{name: c, image: nginx}]}
`
	r.contains(r.run(0, "apply", "-f", "-"), "service/default/web created\ndeployment/default/web created\n",
		"image nginx is not run; `myelin lab serve` stands in\n")
	out := r.run(0, "get", "deploy,svc")
	r.contains(out, "deployment.apps/web   1/1", "service/web   NodePort   10.50.")
	r.contains(r.run(0, "get", "pods", "-A"), "NAMESPACE   NAME", "demo        web ", "default     web-")
	r.contains(r.run(0, "get", "pod/demo/web", "-o", "yaml"), "kind: Pod\n", "phase: Running\n")
	r.contains(r.run(1, "get", "pod", "absent"), `pod "absent" not found`)
	r.contains(r.run(1, "get", "things"), `resource type "things"`)
	r.contains(r.run(1, "get", "pods", "-o", "xml"), "want wide, name, yaml, json or jsonpath=TEMPLATE")
	r.contains(r.run(1, "get", "pods", "-o", "jsonpath={.a"), "-o jsonpath={.a: template")
	r.contains(r.run(0, "get", "pod/demo/web", "-o", "jsonpath={.kind} {.status.phase}"), "Pod Running")
	r.contains(r.run(0, "get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}`), "web\n")
	r.contains(r.run(0, "get", "pods", "-l", "app=nothing"), "No resources found")
	r.contains(r.run(0, "describe", "deploy/web"), "Name:", "Pods:", "web-")
	r.contains(
		r.run(0, "exec", "node1", "myelin", "lab", "call", "--wait", "5s", "http://192.168.9.1:80/"),
		"server  default/web-",
	)
	r.contains(r.run(0, "logs", "deployment/web"), "image nginx is not run", "http on port 80")
	r.contains(r.run(1, "logs", "demo/web", "-c", "x"), `no container "x"`)
	r.stdin = strings.Replace(r.stdin, "replicas: 1", "replica: 1", 1)
	r.contains(r.run(1, "apply", "-f", "-"), "standard input: Deployment default/web: spec.replica: unknown field")
	r.contains(r.run(0, "delete", "svc/web"), "service/default/web deleted\n")
	r.contains(r.run(0, "delete", "-f", "-"), "deployment/default/web deleted\n")
	r.contains(r.run(0, "get", "all", "-o", "name"), "pod/web\n")
}

func TestServePorts(t *testing.T) {
	var opts echo.Options
	opts.Out = io.Discard
	if err := servePorts(&opts, []string{"80", "81/TCP", "53/UDP", "9/SCTP"}); err != nil ||
		!reflect.DeepEqual(opts.HTTP, []int{80, 81}) ||
		!reflect.DeepEqual(opts.UDP, []int{53}) ||
		opts.TCP != nil {
		t.Errorf("%+v %v", opts, err)
	}
	for _, bad := range []string{"0", "65536", "http", "/TCP"} {
		if servePorts(&opts, []string{bad}) == nil {
			t.Errorf("--ports %s is taken", bad)
		}
	}
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
