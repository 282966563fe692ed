package clustertest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// envCluster has the name of a cluster that is up; without it every test skips itself.
const envCluster = "MYELIN_CLUSTER"

// agnhost is the image of upstream's test programs, with curl in it.
const agnhost = "registry.k8s.io/e2e-test-images/agnhost:2.56"

// cluster is one that cluster.sh brought up, and a namespace of the test's own.
type cluster struct {
	t         *testing.T
	namespace string
}

// use makes a namespace that goes with the test.
func use(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv(envCluster) == "" {
		t.Skip(envCluster + " is not set: run test/cluster/run.sh")
	}
	name := strings.ToLower(t.Name())
	c := &cluster{t: t, namespace: name}
	c.kubectl("create", "namespace", name)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.try("get", "pods", "-o", "wide"))
			t.Log(c.try("get", "events"))
		}
		c.kubectl("delete", "namespace", name, "--wait=false")
	})
	eventually(t, 10*time.Second, func() error {
		_, err := c.script(nil, "kubectl", "-n", name, "get", "serviceaccount", "default")
		return err
	})
	return c
}

// script runs a command of cluster.sh, for at most two minutes, and returns what it wrote.
func (c *cluster) script(stdin []byte, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "./cluster.sh", args...)
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// run is script for what must succeed.
func (c *cluster) run(args ...string) string {
	c.t.Helper()
	out, err := c.script(nil, args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	return c.run(append([]string{"kubectl", "-n", c.namespace}, args...)...)
}

// try is kubectl for what may fail: its output, or the error's text.
func (c *cluster) try(args ...string) string {
	out, err := c.script(nil, append([]string{"kubectl", "-n", c.namespace}, args...)...)
	if err != nil {
		return err.Error()
	}
	return out
}

func (c *cluster) apply(yaml string) {
	c.t.Helper()
	if _, err := c.script([]byte(yaml), "kubectl", "-n", c.namespace, "apply", "-f", "-"); err != nil {
		c.t.Fatal(err)
	}
}

// ready waits until a pod is Ready.
func (c *cluster) ready(pod string) {
	c.t.Helper()
	c.kubectl("wait", "pod/"+pod, "--for=condition=Ready", "--timeout=60s")
}

// field is a pod's field, as kubectl's jsonpath.
func (c *cluster) field(pod, path string) string {
	c.t.Helper()
	return c.kubectl("get", "pod", pod, "-o", "jsonpath={"+path+"}")
}

// addresses are a pod's, IPv4 first; IPv6 in brackets, as in a URL.
func (c *cluster) addresses(pod string) []string {
	c.t.Helper()
	list := strings.Fields(c.field(pod, ".status.podIPs[*].ip"))
	if len(list) != 2 {
		c.t.Fatalf("pod %s has addresses %q, want one of each family", pod, list)
	}
	return []string{list[0], "[" + list[1] + "]"}
}

// asks has curl answered with want by a URL, from a place: {"in-node", "n1"}, {"in-control"}, or {"kubectl", "exec", …,
// "--"}.
func (c *cluster) asks(want, url string, place ...string) {
	c.t.Helper()
	eventually(c.t, 20*time.Second, func() error {
		out, err := c.script(nil, append(place, "curl", "-gsS", "-m", "3", url)...)
		if err == nil && out != want {
			err = fmt.Errorf("%s: got %q, want %q", url, out, want)
		}
		return err
	})
}

// within is the place of a pod, for asks.
func (c *cluster) within(pod string) []string {
	return []string{"kubectl", "-n", c.namespace, "exec", pod, "--"}
}

// server is a pod that answers /hostname with its name at port 8080; spec is added to its spec, port to its container
// port.
func server(name, node, port, spec string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
%s
  containers:
  - name: server
    image: %s
    args: [netexec]
    ports: [{containerPort: 8080%s}]
    readinessProbe: {httpGet: {path: /hostname, port: 8080}, periodSeconds: 1}
---
`, name, name, node, spec, agnhost, port)
}

// eventually calls f until it returns nil, and fails with its last error when the time is over.
func eventually(t *testing.T, limit time.Duration, f func() error) {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(200 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
