package clustertest

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"myelin/bench/results"
)

// podStarts is how many pods of each network start, after one that warms everything up.
const podStarts = 15

// TestPodStart compares how long it takes from a pod's creation until it runs, with Myelin and with ptp, the plainest
// network that there is for pods, in turn, on one node.
func TestPodStart(t *testing.T) {
	c := use(t)
	// Of IPv4 only: for IPv6 ptp waits two seconds, until duplicate address detection has ended.
	c.usePtp("n1", []string{`[{"subnet": "10.99.0.0/24"}]`})
	pods := c.client().Pods(c.namespace)
	var took [2][]time.Duration
	for i := range podStarts + 1 {
		for kind, class := range []string{"", "ptp"} {
			d := startPod(t, pods, fmt.Sprintf("p%d-%d", i, kind), class)
			if i > 0 {
				took[kind] = append(took[kind], d)
			}
		}
	}
	for _, list := range took {
		slices.Sort(list)
	}
	ours, theirs := took[0][podStarts/2], took[1][podStarts/2]
	t.Logf("a pod runs after %v, with ptp after %v (medians of %d)", ours, theirs, podStarts)
	if ours > theirs*5/4 {
		t.Errorf("a pod runs after %v, with ptp after %v", ours, theirs)
	}
	record(t, results.Result{Name: "k8s/pod_start_vs_ptp", Value: 1 / ours.Seconds(),
		Unit: "1/s"}.Against(1/theirs.Seconds()))
}

// client speaks to the API server from where that is.
func (c *cluster) client() *typedv1.CoreV1Client {
	c.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.run("kubeconfig"))
	if err != nil {
		c.t.Fatal(err)
	}
	place := "/run/netns/" + os.Getenv(envCluster) + "-cp"
	config.Dial = func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = ns.WithNetNSPath(place, func(ns.NetNS) (err error) {
			conn, err = new(net.Dialer).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
	client, err := typedv1.NewForConfig(config)
	if err != nil {
		c.t.Fatal(err)
	}
	return client
}

// startPod makes a pod on n1, says how long it took until it ran, and removes it.
func startPod(t *testing.T, pods typedv1.PodInterface, name, class string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	changes, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name",
		name).String()})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: "n1", Containers: []corev1.Container{{Name: "pause", Image: agnhost, Args: []string{"pause"}}},
	}}
	if class != "" {
		pod.Spec.RuntimeClassName = &class
	}
	begin := time.Now()
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for change := range changes.ResultChan() {
		now, ok := change.Object.(*corev1.Pod)
		if !ok || now.Status.Phase != corev1.PodRunning {
			continue
		}
		took := time.Since(begin)
		if err := pods.Delete(ctx, name, *metav1.NewDeleteOptions(0)); err != nil {
			t.Fatal(err)
		}
		return took
	}
	t.Fatalf("pod %s doesn't run: %v", name, ctx.Err())
	return 0
}
