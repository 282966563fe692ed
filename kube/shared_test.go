package kube

import (
	"fmt"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPodsShare: rows of Pods with equal labels and ports have the same ones, and others don't.
func TestPodsShare(t *testing.T) {
	reader := newPodReader()
	read := func(name, app string) (labels uintptr, ports *int) {
		t.Helper()
		row, err := reader.read(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", Labels: map[string]string{"app": app,
				"tier": "back"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c",
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}}}},
		}, Origin)
		if err != nil {
			t.Fatal(err)
		}
		if row.Labels["app"] != app || len(row.Ports) != 1 || row.Ports[0].Number != 80 {
			t.Fatalf("the row is %+v", row)
		}
		return reflect.ValueOf(row.Labels).Pointer(), (*int)(reflect.ValueOf(row.Ports).UnsafePointer())
	}
	labels, ports := read("a", "web")
	if l, p := read("b", "web"); l != labels || p != ports {
		t.Error("two pods with equal labels and ports have each their own")
	}
	if l, _ := read("c", "db"); l == labels {
		t.Error("pods with other labels have the same ones")
	}
	for i := range poolSize {
		read("d", fmt.Sprintf("app%d", i))
	}
	if l, _ := read("e", "web"); l != labels {
		t.Error("labels are forgotten before there are many others")
	}
	for i := range 3 * poolSize {
		read("f", fmt.Sprintf("other%d", i))
	}
	if n := len(reader.labels.now) + len(reader.labels.before); n > 2*poolSize {
		t.Errorf("%d label sets are kept, want at most %d", n, 2*poolSize)
	}
}
