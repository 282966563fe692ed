package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// world is a cluster in which plans are carried out at once, and Pods start and end when step says so.
type world struct {
	*Cluster
	t     *testing.T
	uids  int
	fails func(*corev1.Pod) bool // Pods that never become ready
	after func(*corev1.Pod) corev1.PodPhase
}

func newWorld(t *testing.T, nodes ...string) *world {
	w := &world{Cluster: &Cluster{}, t: t}
	for _, name := range nodes {
		w.Nodes = append(w.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return w
}

func (w *world) uid() types.UID { w.uids++; return types.UID(fmt.Sprint("uid-", w.uids)) }

// plans carries out plans until there is none, without any time in which Pods could start.
func (w *world) plans() {
	w.t.Helper()
	for range 100 {
		p := w.Plan()
		if p.Empty() {
			return
		}
		for _, o := range p.Put {
			w.put(o)
		}
		for _, b := range p.Bind {
			w.replacePod(b.Pod, func(pod *corev1.Pod) { pod.Spec.NodeName = b.Node })
		}
		for _, o := range p.Delete {
			w.remove(o)
		}
	}
	w.t.Fatal("plans never end")
}

func (w *world) put(o Object) {
	if o.GetUID() == "" {
		o.SetUID(w.uid())
	}
	switch o := o.(type) {
	case *corev1.Pod:
		w.Pods = append(w.Pods, o)
	case *appsv1.ReplicaSet:
		w.ReplicaSets = slices.DeleteFunc(w.ReplicaSets, func(rs *appsv1.ReplicaSet) bool { return rs.Name == o.Name })
		w.ReplicaSets = append(w.ReplicaSets, o)
	default:
		w.t.Fatalf("a plan puts %T", o)
	}
}

func (w *world) replacePod(pod *corev1.Pod, change func(*corev1.Pod)) {
	i := slices.Index(w.Pods, pod)
	w.Pods[i] = pod.DeepCopy()
	change(w.Pods[i])
}

// remove begins the end of a Pod, which step completes.
func (w *world) remove(o Object) {
	switch o := o.(type) {
	case *corev1.Pod:
		if o.Spec.NodeName == "" {
			w.Pods = slices.DeleteFunc(w.Pods, func(pod *corev1.Pod) bool { return pod == o })
			return
		}
		w.replacePod(o, func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{} })
	case *appsv1.ReplicaSet:
		w.ReplicaSets = slices.DeleteFunc(w.ReplicaSets, func(rs *appsv1.ReplicaSet) bool { return rs == o })
	}
}

// step lets Pods that are being deleted go, and all others start; then plans are carried out.
func (w *world) step() {
	w.t.Helper()
	w.Pods = slices.DeleteFunc(w.Pods, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil })
	for _, pod := range slices.Clone(w.Pods) {
		if pod.Spec.NodeName == "" || !isActive(pod) {
			continue
		}
		w.replacePod(pod, func(pod *corev1.Pod) {
			pod.Status.Phase = corev1.PodRunning
			ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
			if w.fails != nil && w.fails(pod) {
				ready.Status = corev1.ConditionFalse
			}
			pod.Status.Conditions = []corev1.PodCondition{ready}
			if w.after != nil && pod.Status.StartTime != nil {
				pod.Status.Phase = w.after(pod)
			}
			pod.Status.StartTime = &metav1.Time{}
		})
	}
	w.plans()
}

// steps is step until nothing changes any more; each is called after every one.
func (w *world) steps(each func()) {
	w.t.Helper()
	w.plans()
	last := ""
	for range 100 {
		if each != nil {
			each()
		}
		w.step()
		if now := w.text(); now == last {
			return
		} else {
			last = now
		}
	}
	w.t.Fatalf("it never ends: %s", last)
}

// text is what is there: "name@node" of each Pod, with its image and what is unusual.
func (w *world) text() string {
	var names []string
	for _, pod := range w.Pods {
		text := pod.Name + "@" + pod.Spec.NodeName
		if c := pod.Spec.Containers; len(c) > 0 {
			text += "=" + c[0].Image
		}
		if pod.DeletionTimestamp != nil {
			text += " terminating"
		} else if !IsReady(pod) {
			text += " " + string(pod.Status.Phase)
		}
		names = append(names, text)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// images counts the Pods of each image that are not on their way out.
func (w *world) images() map[string]int {
	n := map[string]int{}
	for _, pod := range active(w.Pods) {
		n[pod.Spec.Containers[0].Image]++
	}
	return n
}

func (w *world) nodesOfPods() map[string]int {
	n := map[string]int{}
	for _, pod := range active(w.Pods) {
		n[pod.Spec.NodeName]++
	}
	return n
}

func template(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
}

func (w *world) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "demo", Name: name, UID: w.uid()}
}

func selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
}

func ptr[T any](v T) *T { return &v }

func (w *world) deploy(replicas int32, image string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: w.meta("web"), Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: selector(), Template: template(image),
	}}
	w.Deployments = []*appsv1.Deployment{d}
	return d
}

func (w *world) runJob(spec batchv1.JobSpec) *batchv1.Job {
	spec.Template = template("work")
	spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	j := &batchv1.Job{ObjectMeta: w.meta("sum"), Spec: spec}
	w.Jobs = []*batchv1.Job{j}
	return j
}
