package controller

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func want[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// A Deployment makes a ReplicaSet and Pods on all nodes, scales, and goes with all that it owns.
func TestDeployment(t *testing.T) {
	w := newWorld(t, "a", "b")
	d := w.deploy(4, "v1")
	w.steps(nil)
	want(t, "nodes", w.nodesOfPods(), map[string]int{"a": 2, "b": 2})
	want(t, "ReplicaSets", len(w.ReplicaSets), 1)
	rs := w.ReplicaSets[0]
	if !strings.HasPrefix(rs.Name, "web-") || !strings.HasPrefix(w.Pods[0].Name, rs.Name+"-") {
		t.Errorf("names %s, %s", rs.Name, w.Pods[0].Name)
	}
	want(t, "labels", w.Pods[0].Labels, map[string]string{"app": "web", "pod-template-hash": rs.Name[len("web-"):]})
	want(t, "status", w.WithStatus(d).(*appsv1.Deployment).Status.AvailableReplicas, 4)

	before := w.text()
	d.Spec.Replicas = ptr(int32(6))
	w.steps(nil)
	want(t, "scaled up", w.nodesOfPods(), map[string]int{"a": 3, "b": 3})
	for _, pod := range strings.Split(before, ", ") {
		if !strings.Contains(w.text(), pod) {
			t.Errorf("%s is replaced by scaling", pod)
		}
	}
	d.Spec.Replicas = ptr(int32(2))
	w.steps(nil)
	want(t, "scaled down", w.nodesOfPods(), map[string]int{"a": 1, "b": 1})
	w.Deployments = nil
	w.steps(nil)
	want(t, "what is left", len(w.Pods)+len(w.ReplicaSets), 0)
}

// A Pod that is deleted is replaced.
func TestReplaced(t *testing.T) {
	w := newWorld(t, "a")
	w.deploy(2, "v1")
	w.steps(nil)
	gone := w.Pods[0]
	w.remove(gone)
	w.steps(nil)
	want(t, "Pods", len(w.Pods), 2)
	if strings.Contains(w.text(), gone.Name) {
		t.Errorf("%s is there: %s", gone.Name, w.text())
	}
}

// A new template replaces Pods within maxSurge and maxUnavailable, and stops where the new ones do not get ready.
func TestRollingUpdate(t *testing.T) {
	for _, c := range []struct {
		surge, unavailable string
		replicas           int32
		most, least        int
	}{
		{"", "", 4, 5, 3},
		{"", "", 2, 3, 2},
		{"1", "0", 3, 4, 3},
		{"0", "1", 3, 3, 2},
		{"0", "0", 3, 3, 2},
		{"100%", "100%", 3, 6, 0},
	} {
		t.Run(fmt.Sprintf("%s/%s/%d", c.surge, c.unavailable, c.replicas), func(t *testing.T) {
			w := newWorld(t, "a", "b")
			d := w.deploy(c.replicas, "v1")
			if c.surge != "" {
				d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{
					MaxSurge: ptr(intstr.Parse(c.surge)), MaxUnavailable: ptr(intstr.Parse(c.unavailable)),
				}
			}
			w.steps(nil)
			d.Spec.Template = template("v2")
			w.steps(func() {
				if n := len(active(w.Pods)); n > c.most {
					t.Errorf("%d Pods, more than %d: %s", n, c.most, w.text())
				}
				if n := int(count(w.Pods, IsReady)); n < c.least {
					t.Errorf("%d Pods are ready, fewer than %d: %s", n, c.least, w.text())
				}
			})
			want(t, "images", w.images(), map[string]int{"v2": int(c.replicas)})
			want(t, "ReplicaSets", len(w.ReplicaSets), 1)

			if c.least == 0 {
				return
			}
			w.fails = func(pod *corev1.Pod) bool { return pod.Spec.Containers[0].Image == "broken" }
			d.Spec.Template = template("broken")
			w.steps(nil)
			if n := w.images()["v2"]; n < c.least {
				t.Errorf("a template that never gets ready left %d Pods of the one before, fewer than %d", n, c.least)
			}
			d.Spec.Template = template("v3")
			w.steps(nil)
			want(t, "images after a broken template", w.images(), map[string]int{"v3": int(c.replicas)})
		})
	}
}

// Recreate has no two templates at a time.
func TestRecreate(t *testing.T) {
	w := newWorld(t, "a")
	d := w.deploy(3, "v1")
	d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	w.steps(nil)
	d.Spec.Template = template("v2")
	w.steps(func() {
		images := map[string]bool{}
		for _, pod := range w.Pods { // those on their way out too
			images[pod.Spec.Containers[0].Image] = true
		}
		if len(images) > 1 {
			t.Errorf("two templates at a time: %s", w.text())
		}
	})
	want(t, "images", w.images(), map[string]int{"v2": 3})
}

// A StatefulSet makes, updates and removes its Pods in order.
func TestStatefulSet(t *testing.T) {
	w := newWorld(t, "a", "b")
	s := &appsv1.StatefulSet{ObjectMeta: w.meta("db"), Spec: appsv1.StatefulSetSpec{
		Replicas: ptr(int32(3)), Selector: selector(), Template: template("v1"), ServiceName: "db",
	}}
	w.StatefulSets = []*appsv1.StatefulSet{s}
	var order []string
	seen := func() {
		if now := w.text(); len(order) == 0 || order[len(order)-1] != now {
			order = append(order, now)
		}
	}
	w.steps(seen)
	want(t, "order", order, []string{
		"db-0@a=v1 ", "db-0@a=v1, db-1@b=v1 ", "db-0@a=v1, db-1@b=v1, db-2@a=v1 ", "db-0@a=v1, db-1@b=v1, db-2@a=v1",
	})
	pod := w.Pods[1]
	want(
		t,
		"identity",
		[]string{pod.Spec.Hostname, pod.Spec.Subdomain, pod.Labels["apps.kubernetes.io/pod-index"]},
		[]string{"db-1", "db", "1"},
	)

	s.Spec.Template = template("v2")
	order = nil
	w.steps(seen)
	var first []string // which Pod has the new template first
	for _, text := range order {
		for _, name := range []string{"db-0", "db-1", "db-2"} {
			if strings.Contains(text, name+"@") && strings.Contains(text[strings.Index(text, name):], "=v2") &&
				strings.HasPrefix(text[strings.Index(text, name)+len(name)+2:], "=v2") &&
				!slices.Contains(first, name) {
				first = append(first, name)
			}
		}
		if strings.Count(text, "terminating") > 1 {
			t.Errorf("two Pods at a time: %s", text)
		}
	}
	want(t, "order of the update", first, []string{"db-2", "db-1", "db-0"})

	s.Spec.Replicas = ptr(int32(1))
	order = nil
	w.steps(seen)
	want(t, "order of scaling down", order, []string{
		"db-0@a=v2, db-1@b=v2, db-2@a=v2 terminating", "db-0@a=v2, db-1@b=v2 terminating", "db-0@a=v2",
	})
}

// A Pod of a template that can't work gets out of the way of the next template.
func TestStatefulSetBroken(t *testing.T) {
	w := newWorld(t, "a")
	w.fails = func(pod *corev1.Pod) bool { return pod.Spec.Containers[0].Image == "broken" }
	s := &appsv1.StatefulSet{ObjectMeta: w.meta("db"), Spec: appsv1.StatefulSetSpec{
		Replicas: ptr(int32(2)), Selector: selector(), Template: template("broken"),
	}}
	w.StatefulSets = []*appsv1.StatefulSet{s}
	w.steps(nil)
	want(t, "Pods", w.images(), map[string]int{"broken": 1})
	s.Spec.Template = template("good")
	w.steps(nil)
	want(t, "Pods", w.images(), map[string]int{"good": 2})
}

// A DaemonSet has one Pod on each node that suits it, and replaces one after another.
func TestDaemonSet(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.Nodes[0].Spec.Unschedulable = true
	w.Nodes[2].Labels = map[string]string{"disk": "none"}
	d := &appsv1.DaemonSet{
		ObjectMeta: w.meta("agent"),
		Spec:       appsv1.DaemonSetSpec{Selector: selector(), Template: template("v1")},
	}
	w.DaemonSets = []*appsv1.DaemonSet{d}
	w.steps(nil)
	want(t, "nodes", w.nodesOfPods(), map[string]int{"a": 1, "b": 1, "c": 1})
	d.Spec.Template.Spec.Containers[0].Image = "v2"
	w.steps(func() {
		if n := count(w.Pods, IsReady); n < 2 {
			t.Errorf("%d Pods are ready, fewer than 2: %s", n, w.text())
		}
	})
	want(t, "images", w.images(), map[string]int{"v2": 3})
	d.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "b"}
	w.steps(nil)
	want(t, "nodes", w.nodesOfPods(), map[string]int{"b": 1})
	want(t, "status", w.WithStatus(d).(*appsv1.DaemonSet).Status.DesiredNumberScheduled, 1)
}

// A Job runs as many Pods at a time, and in all, as it says, and gives up after too many failures.
func TestJob(t *testing.T) {
	for name, c := range map[string]struct {
		spec   batchv1.JobSpec
		phase  corev1.PodPhase
		most   int
		pods   int
		result string
	}{
		"one": {batchv1.JobSpec{}, corev1.PodSucceeded, 1, 1, "Complete"},
		"several": {batchv1.JobSpec{Completions: ptr(int32(5)), Parallelism: ptr(int32(2))}, corev1.PodSucceeded, 2, 5,
			"Complete"},
		"queue": {batchv1.JobSpec{Parallelism: ptr(int32(3))}, corev1.PodSucceeded, 3, 3, "Complete"},
		"indexed": {
			batchv1.JobSpec{Completions: ptr(int32(3)), Parallelism: ptr(int32(2)),
				CompletionMode: ptr(batchv1.IndexedCompletion)},
			corev1.PodSucceeded, 2, 3, "Complete",
		},
		"failing":   {batchv1.JobSpec{BackoffLimit: ptr(int32(2))}, corev1.PodFailed, 1, 3, "Failed"},
		"suspended": {batchv1.JobSpec{Suspend: ptr(true)}, corev1.PodSucceeded, 0, 0, "Suspended"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a", "b")
			w.after = func(*corev1.Pod) corev1.PodPhase { return c.phase }
			j := w.runJob(c.spec)
			w.steps(func() {
				if n := len(active(w.Pods)); n > c.most {
					t.Errorf("%d Pods at a time: %s", n, w.text())
				}
			})
			want(t, "Pods", len(w.Pods), c.pods)
			want(t, "result", w.jobResult(j), c.result)
			if name == "indexed" {
				indexes := map[string]bool{}
				for _, pod := range w.Pods {
					indexes[pod.Spec.Containers[0].Env[0].Value] = true
				}
				want(t, "indexes", slices.Sorted(maps.Keys(indexes)), []string{"0", "1", "2"})
			}
			w.Jobs = nil
			w.steps(nil)
			want(t, "what is left", len(w.Pods), 0)
		})
	}
}

// A Pod without a node gets the one that suits it, or a reason.
func TestSchedule(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "only", Value: "db", Effect: corev1.TaintEffectNoSchedule}}
	w.Nodes[1].Labels = map[string]string{"disk": "ssd"}
	pod := func(name string, spec corev1.PodSpec) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name}, Spec: spec}
		w.Pods = append(w.Pods, p)
		return p
	}
	port := []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}}}
	pod("ssd", corev1.PodSpec{NodeSelector: map[string]string{"disk": "ssd"}})
	pod("db", corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "only", Operator: corev1.TolerationOpExists}}})
	pod("port1", corev1.PodSpec{Containers: port})
	pod("port2", corev1.PodSpec{Containers: port})
	nowhere := pod("nowhere", corev1.PodSpec{NodeSelector: map[string]string{"disk": "none"}})
	third := pod("port3", corev1.PodSpec{Containers: port})
	w.plans()
	got := map[string]string{}
	for _, p := range w.Pods {
		got[p.Name] = p.Spec.NodeName
	}
	want(
		t,
		"nodes",
		got,
		map[string]string{"ssd": "b", "db": "a", "port1": "c", "port2": "b", "nowhere": "", "port3": ""},
	)
	for p, reason := range map[*corev1.Pod]string{
		nowhere: "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector",
		third: "0/3 nodes are available: 2 node(s) didn't have free ports for the requested pod ports" +
			": 1 node(s) had untolerated taint {only: db}",
	} {
		if err := w.Unschedulable(p); err == nil || err.Error() != reason {
			t.Errorf("%s: %v, want %s", p.Name, err, reason)
		}
	}
}

// Check names the field that is wrong.
func TestCheck(t *testing.T) {
	d := func(change func(*appsv1.Deployment)) Object {
		d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Selector: selector(), Template: template("v1")}}
		change(d)
		return d
	}
	for _, c := range []struct {
		o    Object
		want string
	}{
		{d(func(*appsv1.Deployment) {}), ""},
		{d(func(d *appsv1.Deployment) { d.Spec.Replicas = ptr(int32(-1)) }), "spec.replicas: -1 must not be negative"},
		{d(func(d *appsv1.Deployment) { d.Spec.Selector = nil }), "spec.selector: is required"},
		{d(func(d *appsv1.Deployment) { d.Spec.Template.Labels = map[string]string{"app": "db"} }),
			"spec.template.metadata.labels: app=db does not match spec.selector app=web"},
		{d(func(d *appsv1.Deployment) { d.Spec.Strategy.Type = "Fast" }),
			`spec.strategy.type: "Fast" is none of ["RollingUpdate" "Recreate"]`},
		{d(func(d *appsv1.Deployment) { d.Spec.Template.Spec.RestartPolicy = "Never" }),
			`spec.template.spec.restartPolicy: "Never" is none of ["Always"]`},
		{&batchv1.Job{}, "spec.template.spec.restartPolicy: is required: Never or OnFailure"},
	} {
		got := ""
		if err := Check(c.o); err != nil {
			got = err.Error()
		}
		want(t, fmt.Sprintf("%T", c.o), got, c.want)
	}
}
