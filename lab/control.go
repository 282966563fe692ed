package lab

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"myelin/lab/controller"
)

// lockManifests keeps others from changing the lab's copy of the manifests between a read and a write of one's own.
func (l *Lab) lockManifests() (unlock func(), err error) {
	f, err := os.OpenFile(l.path("manifests.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock manifests: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock manifests: %w", err), f.Close())
		}
	}
}

// isControlled reports whether controllers or the scheduler have anything to do with some of the objects.
func isControlled(objects []*object) bool {
	return slices.ContainsFunc(objects, func(o *object) bool {
		pod, ok := o.typed.(*corev1.Pod)
		return o.isWorkload() || ok && (pod.Spec.NodeName == "" || metav1.GetControllerOf(pod) != nil)
	})
}

// clusterOf is what controllers decide by.
func (l *Lab) clusterOf(objects []*object, states []PodState) *controller.Cluster {
	c := &controller.Cluster{}
	have := map[string]PodState{}
	for _, s := range states {
		have[s.key()] = s
	}
	for _, o := range objects {
		switch typed := o.typed.(type) {
		case *corev1.Node:
			if l.Node(typed.Name).err == nil {
				c.Nodes = append(c.Nodes, typed)
			}
		case *corev1.Pod:
			key := typed.Namespace + "/" + typed.Name
			if s, ok := have[key]; ok {
				c.Pods = append(c.Pods, l.podWithStatus(typed, s))
				delete(have, key)
			} else {
				c.Pods = append(c.Pods, pending(typed))
			}
		case *appsv1.Deployment:
			c.Deployments = append(c.Deployments, typed)
		case *appsv1.ReplicaSet:
			c.ReplicaSets = append(c.ReplicaSets, typed)
		case *appsv1.StatefulSet:
			c.StatefulSets = append(c.StatefulSets, typed)
		case *appsv1.DaemonSet:
			c.DaemonSets = append(c.DaemonSets, typed)
		case *batchv1.Job:
			c.Jobs = append(c.Jobs, typed)
		}
	}
	for _, s := range states {
		if _, ok := have[s.key()]; ok { // its object is gone
			c.Pods = append(c.Pods, l.leaving(s))
		}
	}
	return c
}

func pending(pod *corev1.Pod) *corev1.Pod {
	p := *pod
	p.Status = corev1.PodStatus{Phase: corev1.PodPending}
	return &p
}

// podWithStatus is a Pod object with the status of what runs of it. A Pod that is about to be made anew is Pending.
func (l *Lab) podWithStatus(pod *corev1.Pod, s PodState) *corev1.Pod {
	p := pending(pod)
	if s.Hash == specHash(pod) {
		p.Status = l.statusObject(s).Status
		p.UID = l.statusObject(s).UID
	}
	return p
}

// leaving is a Pod whose object is gone and whose containers or network are not.
func (l *Lab) leaving(s PodState) *corev1.Pod {
	p := l.statusObject(s)
	p.DeletionTimestamp = &metav1.Time{Time: s.Started}
	if s.Owner != nil {
		p.OwnerReferences = []metav1.OwnerReference{*s.Owner}
	}
	return p
}

// control does what controllers and the scheduler would, until there is nothing to do before a Pod starts or ends.
func (l *Lab) control() error {
	const rounds = 100 // a StatefulSet of many Pods in parallel takes few; more are an error of the controllers
	for range rounds {
		done, err := l.controlOnce()
		if done || err != nil {
			return err
		}
	}
	return errors.New("controllers do not come to an end")
}

func (l *Lab) controlOnce() (done bool, err error) {
	objects, err := l.objects()
	if err != nil || !isControlled(objects) {
		return true, err
	}
	unlock, err := l.lockManifests()
	if err != nil {
		return true, err
	}
	defer unlock()
	if objects, err = l.objects(); err != nil {
		return true, err
	}
	states, err := l.podStates()
	if err != nil {
		return true, err
	}
	plan := l.clusterOf(objects, states).Plan()
	for _, o := range plan.Put {
		if err := l.putTyped(o); err != nil {
			return true, err
		}
	}
	for _, b := range plan.Bind {
		if err := l.bindPod(b, objects); err != nil {
			return true, err
		}
	}
	for _, o := range plan.Delete {
		name := l.path("manifests", objectFor(o).fileName())
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return true, err
		}
	}
	return plan.Empty(), nil
}

// objectFor is the object of a kind that controllers know, without its contents.
func objectFor(o controller.Object) *object {
	out := &object{}
	out.Kind, out.Namespace, out.Name = controller.Kind(o), o.GetNamespace(), o.GetName()
	return out
}

// putTyped writes an object that a controller has made.
func (l *Lab) putTyped(o controller.Object) error {
	if t := o.GetCreationTimestamp(); t.IsZero() {
		o.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	}
	if o.GetUID() == "" && controller.Kind(o) != "Pod" { // a Pod has one for each time that it is made
		o.SetUID(newUID())
	}
	data, err := yaml.Marshal(o)
	if err != nil {
		return err
	}
	return l.writeManifest(objectFor(o).fileName(), data)
}

// bindPod writes a Pod's node into its object. What was applied stays known by the annotation.
func (l *Lab) bindPod(b controller.Binding, objects []*object) error {
	name := objectFor(b.Pod).fileName()
	i := slices.IndexFunc(objects, func(o *object) bool { return o.fileName() == name })
	if i < 0 {
		return nil
	}
	o := *objects[i]
	pod := o.typed.DeepCopyObject().(*corev1.Pod)
	pod.Spec.NodeName = b.Node
	var err error
	if metav1.GetControllerOf(pod) != nil {
		o.data, err = yaml.Marshal(pod)
	} else {
		err = o.addNode(b.Node)
	}
	if err != nil {
		return err
	}
	return l.writeManifest(name, o.data)
}

// addNode adds a node to a Pod's document.
func (o *object) addNode(node string) error {
	return o.edit(func(doc map[string]any) { child(doc, "spec")["nodeName"] = node })
}
