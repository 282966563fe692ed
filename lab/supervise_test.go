package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const oneNode = `
apiVersion: v1
kind: Node
metadata: {name: a}
spec: {podCIDRs: [10.0.1.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.9.1}]}
---
`

// podYAML is a Pod of one container that runs a shell script.
func podYAML(name, policy, script string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeName: a
  restartPolicy: %s
  terminationGracePeriodSeconds: 1
  containers: [{name: main, command: [sh, -c, %q]}]
---
`, name, policy, script)
}

func apply(t *testing.T, l *Lab, prune bool, manifests string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "apply.yaml")
	if err := os.WriteFile(file, []byte(manifests), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := l.Apply(ctx, file, prune); err != nil {
		t.Fatal(err)
	}
}

func TestRestartPolicy(t *testing.T) {
	t.Parallel()
	l := up(t, testOptions(t, oneNode+
		podYAML("always", "Always", "exit 0")+
		podYAML("failing", "OnFailure", "exit 5")+
		podYAML("succeeding", "OnFailure", "exit 0")+
		podYAML("never", "Never", "kill -TERM $$$$")+
		podYAML("missing", "Always", "exec /nonexistent")))
	for name, check := range map[string]func(PodState) bool{
		"always":     func(s PodState) bool { return s.Phase == "Running" && s.Containers[0].Restarts >= 2 },
		"failing":    func(s PodState) bool { return s.Phase == "Running" && s.Containers[0].Restarts >= 2 },
		"succeeding": func(s PodState) bool { return s.Phase == "Succeeded" && s.Containers[0].Restarts == 0 },
		"never":      func(s PodState) bool { return s.Phase == "Failed" && s.Containers[0].ExitCode == 128+15 },
		"missing":    func(s PodState) bool { return s.Containers[0].ExitCode == 127 && s.Containers[0].Restarts >= 1 },
	} {
		eventually(t, name, func() error {
			if s := l.Pod(name).State(); !check(s) {
				return fmt.Errorf("state %+v", s)
			}
			return nil
		})
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	sleeper := func(name string) string { return podYAML(name, "Always", "sleep 1000") }
	opts := testOptions(t, oneNode+sleeper("stays")+sleeper("changes")+sleeper("goes"))
	l := up(t, opts)
	before := map[string]PodState{}
	for _, name := range []string{"stays", "changes", "goes"} {
		before[name] = l.Pod(name).State()
	}
	labelled := strings.Replace(sleeper("stays"), "name: stays}", "name: stays, labels: {app: x}}", 1)
	apply(t, l, false, labelled+podYAML("changes", "Always", "sleep 2000")+sleeper("comes"))
	if now := l.Pod("stays").State(); now.ContainerID != before["stays"].ContainerID {
		t.Error("a label made the pod anew")
	}
	if now := l.Pod("changes").State(); now.ContainerID == before["changes"].ContainerID || now.Phase != "Running" {
		t.Errorf("a new command left the old pod: %+v", now)
	}
	if before["changes"].Containers[0].Process.Alive() {
		t.Error("the old command runs still")
	}
	if err := l.Pod("comes").Err(); err != nil {
		t.Error(err)
	}

	apply(t, l, true, labelled)
	for _, name := range []string{"goes", "changes", "comes"} {
		if l.Pod(name).Err() == nil {
			t.Errorf("pod %s is there after prune", name)
		}
	}
	for _, pattern := range []string{l.path("manifests", "status", "*"), l.path("pods", "*"),
		l.path("nodes", "a", "pods", "*"), netnsPath(l.Name() + "-a_*")} {
		if files, _ := filepath.Glob(pattern); len(files) != 1 {
			t.Errorf("%s: %v, want those of one pod", pattern, files)
		}
	}
	out, err := l.Node("a").Exec(t.Context(), "ip", "-br", "link", "show", "type", "veth")
	if err != nil || strings.Count(out, "pod") != 1 {
		t.Errorf("links of deleted pods: %s %v", out, err)
	}
	if err := l.DeletePod(t.Context(), "stays"); err != nil {
		t.Error(err)
	}
	if pods, err := l.Pods(); err != nil || len(pods) != 0 {
		t.Errorf("pods after delete: %v %v", pods, err)
	}
	for manifests, want := range map[string]string{
		strings.Replace(oneNode, "name: a", "name: b", 1): "can't join",
		strings.Replace(oneNode, "9.1", "9.7", 1):         "can't change",
		"kind: Pod\n": "without kind or metadata.name",
	} {
		file := filepath.Join(t.TempDir(), "bad.yaml")
		if err := os.WriteFile(file, []byte(manifests), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := l.Apply(t.Context(), file, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("apply: %v, want %q", err, want)
		}
	}
}

// TestTerminating: a pod that is being deleted runs on until its object goes.
func TestTerminating(t *testing.T) {
	t.Parallel()
	stays := podYAML("leaves", "Always", "sleep 1000")
	l := up(t, testOptions(t, oneNode+stays))
	before := l.Pod("leaves").State()
	for _, c := range []struct {
		yaml        string
		terminating bool
	}{
		{strings.Replace(stays, "name: leaves}", `name: leaves, deletionTimestamp: "2026-01-02T03:04:05Z"}`, 1), true},
		{stays, false},
	} {
		apply(t, l, false, c.yaml)
		now := l.Pod("leaves").State()
		if now.ContainerID != before.ContainerID || !now.Containers[0].Process.Alive() || now.Phase != "Running" ||
			now.Terminating != c.terminating {
			t.Errorf("terminating %t: %+v", c.terminating, now)
		}
	}
}

// TestRefused has a plugin refuse a pod: the pod says why, is tried again, and others go on.
func TestRefused(t *testing.T) {
	t.Parallel()
	opts := testOptions(t, oneNode+podYAML("no-network", "Always", "sleep 1000")+podYAML("other", "Always",
		"sleep 1000"))
	opts.Timeout, opts.KeepOnFailure = time.Second, true
	if _, err := Up(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "the pod's name is no-network") {
		t.Fatalf("up: %v", err)
	}
	l, err := Open(opts.Dir, opts.Name, nil)
	if err != nil {
		t.Fatal(err)
	}
	first := l.Pod("no-network").State()
	eventually(t, "another attempt", func() error {
		if s := l.Pod("no-network").State(); s.ContainerID == "" || s.ContainerID == first.ContainerID {
			return errors.New("the same container ID")
		}
		return nil
	})
	if s := l.Pod("other").State(); s.Phase != "Running" {
		t.Errorf("the other pod is %s: %s", s.Phase, s.Message)
	}
	if err := l.DeletePod(t.Context(), "no-network"); err != nil {
		t.Error(err)
	}
}

// TestStatusObject reads what agents read.
func TestStatusObject(t *testing.T) {
	t.Parallel()
	l := up(t, testOptions(t, oneNode+podYAML("p", "Always", "sleep 1000")))
	files, err := filepath.Glob(filepath.Join(l.Manifests(), "status", "*.yaml"))
	if err != nil || len(files) != 1 || filepath.Base(files[0]) != "a_default_p.yaml" {
		t.Fatalf("status objects: %v %v", files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict(data, &pod); err != nil {
		t.Fatal(err)
	}
	state := l.Pod("p").State()
	if pod.Kind != "Pod" || pod.Namespace != "default" || pod.Name != "p" || string(pod.UID) != state.UID ||
		pod.Spec.NodeName != "a" || pod.Status.Phase != corev1.PodRunning ||
		pod.Status.PodIP != state.Addresses[0].String() || pod.Status.PodIPs[0].IP != pod.Status.PodIP ||
		pod.Status.HostIP != "192.168.9.1" || pod.Status.Conditions[0].Status != corev1.ConditionTrue {
		t.Errorf("status object %s", data)
	}
}

// TestAdopt kills the supervisor; the next one goes on with what runs, and notices what ended in between.
func TestAdopt(t *testing.T) {
	t.Parallel()
	l := up(t, testOptions(t, oneNode+
		podYAML("stays", "Always", "sleep 1000")+
		podYAML("ends", "Always", "sleep 1000")+
		podYAML("done", "Never", "exit 0")+
		podYAML("goes", "Always", "sleep 1000")))
	eventually(t, "pod done", func() error {
		if s := l.Pod("done").State(); s.Phase != "Succeeded" {
			return errors.New(s.Phase)
		}
		return nil
	})
	supervisor := readPID(l.path("supervisor.pid"))
	if err := supervisor.signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := supervisor.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st, err := l.Status(); err != nil || st.Supervisor != "not running" {
		t.Errorf("status: %+v %v", st, err)
	}
	before := l.Pod("stays").State()
	ends := l.Pod("ends").State().Containers[0].Process
	if err := ends.signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := l.drop([]*object{mustPod(t, "goes")}); err != nil {
		t.Fatal(err)
	}
	apply(t, l, false, podYAML("comes", "Always", "sleep 1000"))
	if now := l.Pod("stays").State(); now.ContainerID != before.ContainerID ||
		now.Containers[0].Process != before.Containers[0].Process {
		t.Errorf("adopted pod is %+v, was %+v", now, before)
	}
	eventually(t, "restart of what ended", func() error {
		if c := l.Pod("ends").State().Containers[0]; !c.Process.Alive() || c.Restarts != 1 {
			return fmt.Errorf("container %+v", c)
		}
		return nil
	})
	if s := l.Pod("done").State(); s.Containers[0].Restarts != 0 || s.Phase != "Succeeded" {
		t.Errorf("a pod that had ended is %+v", s)
	}
	if err := l.Supervise(t.Context()); err == nil {
		t.Error("two supervisors at a time")
	}
}

func mustPod(t *testing.T, name string) *object {
	t.Helper()
	objects, err := parseObjects("test", []byte(podYAML(name, "Always", "")))
	if err != nil || len(objects) != 1 {
		t.Fatal(objects, err)
	}
	return objects[0]
}

// TestKillUp kills `lab up` at moments spread over its work, then takes the lab down.
func TestKillUp(t *testing.T) {
	t.Parallel()
	for after := 5 * time.Millisecond; after < 200*time.Millisecond; after += 15 * time.Millisecond {
		t.Run(after.String(), func(t *testing.T) {
			opts := testOptions(t, manifestsFor(t))
			opts.Agent = opts.Binary
			data, err := json.Marshal(opts)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(opts.Binary, "lab", "up", string(data))
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(after)
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // says that it was killed
			down(t, opts)
		})
	}
}
