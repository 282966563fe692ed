package kube

import (
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"myelin/test/kube/apiserver"
)

// population is how much there is of a cluster. All is dual-stack.
type population struct {
	nodes, pods, services int
	// apps are sets of labels that pods have, namespaces where they are.
	apps, namespaces int
	// backends are those of a Service.
	backends int
}

// fill makes a server have it.
func (p population) fill(t *testing.T, s *apiserver.Server) {
	t.Helper()
	s.Fill(p.lists(t, p.namespaces, p.namespace))
	s.Fill(p.lists(t, p.nodes, p.node))
	s.Fill(p.lists(t, p.pods, p.pod))
	s.Fill(p.lists(t, p.services, p.service))
}

// object is what to create where. Status is written after it: a client that creates a Pod
// can't say where it is.
type object struct {
	path   string
	object any
	status any
}

func (p population) lists(t *testing.T, n int, of func(i int) []object) iter.Seq[[]apiserver.Request] {
	t.Helper()
	encode := func(o any) []byte {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	return func(yield func([]apiserver.Request) bool) {
		for i := range n {
			var list []apiserver.Request
			for _, o := range of(i) {
				list = append(list, apiserver.Request{Method: http.MethodPost, Path: o.path, Kind: "application/json",
					Object: encode(o.object)})
				if o.status != nil {
					list = append(list, apiserver.Request{
						Method: http.MethodPatch, Path: o.path + "/" + p.podName(i) + "/status",
						Kind:   "application/merge-patch+json",
						Object: encode(map[string]any{"status": o.status}),
					})
				}
			}
			if !yield(list) {
				return
			}
		}
	}
}

func (p population) podName(i int) string { return fmt.Sprintf("app%d-7c9d8b6f5-%05d", i%p.apps, i) }

// podNode is the pod's node, and place where it is among that node's pods.
func (p population) podNode(i int) (node, place int) { return i % p.nodes, i / p.nodes }

// podAddresses follow from the podCIDRs of nodes.
func (p population) podAddresses(i int) [2]string {
	node, place := p.podNode(i)
	return [2]string{fmt.Sprintf("10.%d.%d.%d", node/256, node%256, place+2),
		fmt.Sprintf("fd00:1:%x::%x", node+1, place+2)}
}

// nodeAddresses begin with those that newNode gives itself.
func nodeAddresses(i int) [2]string {
	return [2]string{fmt.Sprintf("172.16.%d.%d", (i+1)/256, (i+1)%256), fmt.Sprintf("2001:db8::%x", i+1)}
}

func (p population) appNamespace(app int) string { return fmt.Sprintf("team%d", app%p.namespaces) }

func (p population) labels(app int) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name":     fmt.Sprintf("app%d", app),
		"app.kubernetes.io/instance": fmt.Sprintf("app%d-production", app),
		"app.kubernetes.io/part-of":  p.appNamespace(app), "pod-template-hash": "7c9d8b6f5", "tier": "backend",
	}
}

func (p population) namespace(i int) []object {
	return []object{{path: "/api/v1/namespaces",
		object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.appNamespace(i)}}}}
}

func (p population) node(i int) []object {
	name, a := fmt.Sprintf("node%d", i+1), nodeAddresses(i)
	cidrs := []string{fmt.Sprintf("10.%d.%d.0/24", i/256, i%256), fmt.Sprintf("fd00:1:%x::/64", i+1)}
	return []object{{path: "/api/v1/nodes", object: &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
			corev1.LabelTopologyZone: fmt.Sprintf("zone%d", i%3),
		}},
		Spec: corev1.NodeSpec{PodCIDR: cidrs[0], PodCIDRs: cidrs},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: a[0]},
				{Type: corev1.NodeInternalIP, Address: a[1]}, {Type: corev1.NodeHostName, Address: name}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}}}
}

// pod is as large as one that a Deployment makes: most of it is nothing to a network.
func (p population) pod(i int) []object {
	app := i % p.apps
	node, _ := p.podNode(i)
	a := p.podAddresses(i)
	yes := true
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz",
		Port: intstr.FromString("http")}}}
	return []object{{
		path: "/api/v1/namespaces/" + p.appNamespace(app) + "/pods",
		object: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: p.podName(i), Labels: p.labels(app),
				Annotations: map[string]string{"checksum/config": fmt.Sprintf("%064x", i)},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet",
					Name: fmt.Sprintf("app%d-7c9d8b6f5", app),
					UID:  types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", app)), Controller: &yes}},
			},
			Spec: corev1.PodSpec{
				NodeName: fmt.Sprintf("node%d", node+1),
				Containers: []corev1.Container{{
					Name: "main", Image: fmt.Sprintf("registry.example/team/app%d:1.%d", app, i%7),
					ReadinessProbe: probe, LivenessProbe: probe,
					Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080},
						{Name: "metrics", ContainerPort: 9090}},
					Env: []corev1.EnvVar{{Name: "LOG_LEVEL", Value: "info"},
						{Name: "DATABASE", Value: fmt.Sprintf("postgres://db.%s:5432/app%d",
							p.appNamespace(app), app)}},
				}},
			},
		},
		status: map[string]any{
			"phase": "Running", "podIP": a[0], "podIPs": []map[string]string{{"ip": a[0]}, {"ip": a[1]}},
			"hostIP": nodeAddresses(node)[0],
			"conditions": []map[string]any{{"type": "Ready", "status": "True"},
				{"type": "ContainersReady", "status": "True"}, {"type": "Initialized", "status": "True"}},
			"containerStatuses": []map[string]any{{"name": "main", "ready": true, "started": true, "restartCount": 0,
				"image": "app", "imageID": fmt.Sprintf("sha256:%064x", app),
				"containerID": fmt.Sprintf("containerd://%064x", i)}},
		},
	}}
}

// service is one with a slice for each family.
func (p population) service(i int) []object {
	app := i % p.apps
	namespace, name := p.appNamespace(app), fmt.Sprintf("service%d", i)
	both, port, portName, ready := corev1.IPFamilyPolicyRequireDualStack, int32(8080), "http", true
	list := []object{{path: "/api/v1/namespaces/" + namespace + "/services", object: &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: p.labels(app)},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: &both, Selector: map[string]string{"app.kubernetes.io/name": fmt.Sprintf("app%d", app)},
			Ports: []corev1.ServicePort{{Name: portName, Port: 80, TargetPort: intstr.FromString("http")}},
		},
	}}}
	for f, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, f),
				Labels: map[string]string{discoveryv1.LabelServiceName: name,
					discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}},
			AddressType: family, Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
		}
		for b := range p.backends {
			// Pods of the Service's app, each time others.
			pod := (app + p.apps*(i/p.apps*p.backends+b)) % p.pods
			node, _ := p.podNode(pod)
			nodeName, zone := fmt.Sprintf("node%d", node+1), fmt.Sprintf("zone%d", node%3)
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{p.podAddresses(pod)[f]}, NodeName: &nodeName, Zone: &zone,
				Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: p.podName(pod),
					UID: types.UID(fmt.Sprintf("00000000-0000-0000-0001-%012d", pod))},
			})
		}
		list = append(list, object{path: "/apis/discovery.k8s.io/v1/namespaces/" + namespace + "/endpointslices",
			object: slice})
	}
	return list
}
