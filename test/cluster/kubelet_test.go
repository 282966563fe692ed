package clustertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestHostPort reaches a pod by its node's addresses from outside, from another node, and from the node itself.
func TestHostPort(t *testing.T) {
	c := use(t)
	c.apply(server("web", "n2", ", hostPort: 8881", ""))
	c.ready("web")
	for _, at := range []string{"172.30.0.12", "[fd30::12]"} {
		url := "http://" + at + ":8881/hostname"
		c.asks("web", url, "in-control")
		c.asks("web", url, "in-node", "n1")
		c.asks("web", url, "in-node", "n2")
	}
	c.kubectl("delete", "pod", "web", "--now")
	eventually(t, 10*time.Second, func() error {
		out, err := c.script(nil, "in-control", "curl", "-gsS", "-m", "3", "http://172.30.0.12:8881/hostname")
		if err == nil {
			return fmt.Errorf("a host port outlives its pod: %s", out)
		}
		return nil
	})
}

// TestHostNetwork reaches a pod in the host's network from a pod, and a pod from it, over both families and a Service.
func TestHostNetwork(t *testing.T) {
	c := use(t)
	c.apply(server("host", "n2", "", "  hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet") + server("pod", "n1",
		"", "") + `
apiVersion: v1
kind: Service
metadata: {name: pod}
spec: {ipFamilyPolicy: RequireDualStack, selector: {app: pod}, ports: [{port: 80, targetPort: 8080}]}
`)
	c.ready("host")
	c.ready("pod")
	for _, at := range c.addresses("host") {
		c.asks("n2", "http://"+at+":8080/hostname", c.within("pod")...)
	}
	for _, at := range c.addresses("pod") {
		c.asks("pod", "http://"+at+":8080/hostname", c.within("host")...)
	}
	c.asks("pod", "http://pod."+c.namespace+".svc.cluster.local/hostname", c.within("host")...)
}

// TestStaticPod starts a pod that kubelet alone knows of, by a file.
func TestStaticPod(t *testing.T) {
	c := use(t)
	yaml := strings.Replace(server("still", "n3", "", ""), "nodeName: n3", "nodeName: \"\"", 1)
	yaml = strings.Replace(yaml, "metadata: {", "metadata: {namespace: "+c.namespace+", ", 1)
	file := "/etc/kubernetes/manifests/still.yaml"
	local := filepath.Join(t.TempDir(), "still.yaml")
	if err := os.WriteFile(local, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.run("in-node", "n3", "rm", "-f", file) })
	c.run("in-node", "n3", "cp", local, file)
	eventually(t, 60*time.Second, func() error {
		_, err := c.script(nil, "kubectl", "-n", c.namespace, "get", "pod", "still-n3")
		return err
	})
	c.ready("still-n3")
	for _, at := range c.addresses("still-n3") {
		c.asks("still-n3", "http://"+at+":8080/hostname", "in-node", "n1")
	}
}

// TestInitContainers has init containers that need the network before the pod runs: the API server's Service by name,
// and the world.
func TestInitContainers(t *testing.T) {
	c := use(t)
	c.apply(server("web", "n1", "", fmt.Sprintf(`  initContainers:
  - {name: name, image: %s, command: [curl, -ksS, -m, "10", -o, /dev/null, "https://kubernetes.default.svc.cluster.local/"]}
  - {name: world, image: %s, command: [curl, -ksS, -m, "10", -o, /dev/null, "https://172.30.0.10:6443/"]}
`, agnhost, agnhost)))
	c.ready("web")
	if n := c.field("web", ".status.initContainerStatuses[*].restartCount"); n != "0 0" {
		t.Errorf("init containers restarted %s times, want 0 0", n)
	}
}

// TestSandboxKilled kills a pod's first process: kubelet makes the sandbox anew, with another address, and what the old
// one had is given back.
func TestSandboxKilled(t *testing.T) {
	c := use(t)
	c.apply(server("web", "n2", "", "") + `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ipFamilyPolicy: RequireDualStack, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`)
	c.ready("web")
	before := c.addresses("web")
	endpoints := c.run("in-node", "n2", "myelin", "endpoint", "list")
	uid := c.field("web", ".metadata.uid")
	c.run("in-node", "n2", "sh", "-c", "for p in $(grep -l pod"+uid+" /proc/[0-9]*/cgroup); do p=${p%/cgroup}; "+
		"[ $(readlink $p/exe) != /pause ] || kill -9 ${p#/proc/}; done")
	eventually(t, 60*time.Second, func() error {
		if now := c.addresses("web"); now[0] == before[0] {
			return fmt.Errorf("the sandbox has its address still, %s", now[0])
		}
		return nil
	})
	c.ready("web")
	for _, at := range append(c.addresses("web"), "web."+c.namespace+".svc.cluster.local") {
		if !strings.HasSuffix(at, "local") {
			c.asks("web", "http://"+at+":8080/hostname", "in-node", "n1")
		}
	}
	after := c.run("in-node", "n2", "myelin", "endpoint", "list")
	if n, m := strings.Count(endpoints, "\n"), strings.Count(after, "\n"); n != m {
		t.Errorf("%d endpoints before, %d after:\n%s\n%s", n, m, endpoints, after)
	}
}

// TestExec uses what comes through kubelet: exec, logs, port-forward, also of a pod in the host's network.
func TestExec(t *testing.T) {
	c := use(t)
	c.apply(server("pod", "n1", "", "") + server("host", "n3", "", "  hostNetwork: true"))
	for _, pod := range []string{"pod", "host"} {
		c.ready(pod)
		if out := c.kubectl("exec", pod, "--", "echo", "heard"); out != "heard" {
			t.Errorf("exec in %s: %q", pod, out)
		}
		eventually(t, 10*time.Second, func() error {
			if out := c.kubectl("logs", pod); !strings.Contains(out, "GET /hostname") {
				return fmt.Errorf("logs of %s: %q", pod, out)
			}
			return nil
		})
		out := c.forwarded(pod, "8080")
		if want := strings.Replace(pod, "host", "n3", 1); out != want {
			t.Errorf("port-forward to %s: %q, want %q", pod, out, want)
		}
	}
}

// forwarded asks a pod's port by `kubectl port-forward`.
func (c *cluster) forwarded(pod, port string) string {
	c.t.Helper()
	ctx, stop := context.WithCancel(c.t.Context())
	cmd := exec.CommandContext(ctx, "./cluster.sh", "kubectl", "-n", c.namespace, "port-forward", "pod/"+pod,
		"18080:"+port)
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	defer func() { stop(); _ = cmd.Wait() }()
	var out string
	eventually(c.t, 20*time.Second, func() (err error) {
		out, err = c.script(nil, "in-control", "curl", "-gsS", "-m", "3", "http://127.0.0.1:18080/hostname")
		return err
	})
	return out
}
