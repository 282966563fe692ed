package lab

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"myelin/lab/controller"
	"myelin/lab/show"
)

// Describe writes the objects of a query at length.
func (l *Lab) Describe(ctx context.Context, w io.Writer, q Query) error {
	items, err := l.Get(ctx, q)
	if err != nil {
		return err
	}
	objects, err := l.objects()
	if err != nil {
		return err
	}
	states, err := l.podStates()
	if err != nil {
		return err
	}
	rejected, err := l.rejections(ctx)
	if err != nil {
		return err
	}
	c := l.clusterOf(objects, states)
	for n, item := range items {
		if n > 0 {
			fmt.Fprintln(w)
		}
		r := show.Related{Pods: l.podItems(podsBehind(c, item.Object), c)}
		for _, o := range objects {
			if shownAs(o, item) {
				r.Rejected = rejected[o.fileName()]
				r.Notes = l.notRun([]*object{o})
				if ref := metav1.GetControllerOf(o); ref != nil {
					r.Owner = ref.Kind + "/" + ref.Name
				}
			}
		}
		if err := show.Describe(w, item, r, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// shownAs reports whether an item is of an object.
func shownAs(o *object, i show.Item) bool {
	r, ok := resourceNamed(i.Resource)
	return ok && o.Kind == r.kind && o.Namespace == i.Namespace && o.Name == i.Name
}

func (l *Lab) podItems(pods []*corev1.Pod, c *controller.Cluster) []show.Item {
	r, _ := resourceNamed("pods")
	var items []show.Item
	for _, pod := range pods {
		items = append(items, l.podItem(r, pod, c))
	}
	slices.SortFunc(items, func(a, b show.Item) int { return strings.Compare(a.Name, b.Name) })
	return items
}

// podsBehind are the Pods that a workload controls, or that a Service leads to.
func podsBehind(c *controller.Cluster, object any) []*corev1.Pod {
	var pods []*corev1.Pod
	if s, ok := object.(*corev1.Service); ok {
		for _, pod := range c.Pods {
			if selects(s, pod) {
				pods = append(pods, pod)
			}
		}
		return pods
	}
	owner, ok := object.(controller.Object)
	if !ok || controller.Kind(owner) == "" {
		return nil
	}
	pods = c.PodsOf(owner)
	for _, rs := range c.ReplicaSets {
		if metav1.IsControlledBy(rs, owner) {
			pods = append(pods, c.PodsOf(rs)...)
		}
	}
	return pods
}

// rejections are what the agents that run reject now, by file.
func (l *Lab) rejections(ctx context.Context) (map[string][]string, error) {
	all := map[string][]string{}
	for _, n := range l.Nodes() {
		if !n.AgentProcess().Alive() || !n.readsManifests() {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, answerLimit)
		problems, err := n.problems(ctx)
		cancel()
		if err != nil {
			return nil, err
		}
		for file, reasons := range problems {
			for _, reason := range reasons {
				if !slices.Contains(all[file], reason) {
					all[file] = append(all[file], reason)
				}
			}
		}
	}
	return all, nil
}

// findPod is Pod, and takes KIND/NAME or KIND/NAMESPACE/NAME of a workload or a Service too: then it is one of its
// pods, one that is ready if there is one.
func (l *Lab) findPod(name string) *Pod {
	p := l.Pod(name)
	kind, rest, ok := strings.Cut(name, "/")
	if p.err == nil || !ok {
		return p
	}
	if kind == "pod" || kind == "pods" || kind == "po" {
		return l.Pod(rest)
	}
	if !IsResource(kind) {
		return p
	}
	failed := func(err error) *Pod { return &Pod{Place: Place{lab: l, name: name, err: err}} }
	items, err := l.Get(context.Background(), Query{Resource: kind, Names: []string{rest}})
	if err != nil {
		return failed(err)
	}
	if len(items) > 1 {
		return failed(
			fmt.Errorf("%s is in more than one namespace: write %s/%s/%s", name, kind, items[0].Namespace,
				items[0].Name),
		)
	}
	objects, err := l.objects()
	if err != nil {
		return failed(err)
	}
	states, err := l.podStates()
	if err != nil {
		return failed(err)
	}
	pods := podsBehind(l.clusterOf(objects, states), items[0].Object)
	pods = slices.DeleteFunc(pods, func(pod *corev1.Pod) bool {
		return pod.DeletionTimestamp != nil ||
			!slices.ContainsFunc(states, func(s PodState) bool { return s.key() == pod.Namespace+"/"+pod.Name })
	})
	if len(pods) == 0 {
		return failed(fmt.Errorf("%s has no pod", name))
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	first := max(0, slices.IndexFunc(pods, controller.IsReady))
	return l.Pod(pods[first].Namespace + "/" + pods[first].Name)
}
