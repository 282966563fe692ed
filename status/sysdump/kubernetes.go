package sysdump

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"myelin/kube/apiserver"
)

// Cluster collects what an API server has. Secrets are never asked for.
type Cluster struct {
	Server *apiserver.Server
	// Namespace is where Myelin is installed.
	Namespace string
}

// Collect adds objects and logs. What the user may not read, or the cluster lacks, is noted in the archive.
func (c *Cluster) Collect(ctx context.Context, a *Archive) {
	for _, o := range c.objects() {
		file := "kubernetes/" + o.name + ".json"
		var list json.RawMessage
		if err := c.Server.Get(ctx, o.path, &list); err != nil {
			if !apierrors.IsNotFound(err) || !o.optional {
				a.Fail(file, err)
			}
			continue
		}
		a.add(file, list)
	}
	c.pods(ctx, a)
}

// object is what is asked for by one request.
type object struct {
	name, path string
	optional   bool // kinds whose definition a cluster may lack
}

func (c *Cluster) objects() []object {
	own := "/namespaces/" + c.Namespace
	return []object{
		{name: "version", path: "/version"},
		{name: "nodes", path: "/api/v1/nodes"},
		{name: "namespaces", path: "/api/v1/namespaces"},
		{name: "services", path: "/api/v1/services"},
		{name: "endpointslices", path: "/apis/discovery.k8s.io/v1/endpointslices"},
		{name: "networkpolicies", path: "/apis/networking.k8s.io/v1/networkpolicies"},
		{
			name:     "clusternetworkpolicies",
			path:     "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies",
			optional: true,
		},
		{name: "ciliumnetworkpolicies", path: "/apis/cilium.io/v2/ciliumnetworkpolicies", optional: true},
		{
			name:     "ciliumclusterwidenetworkpolicies",
			path:     "/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies",
			optional: true,
		},
		{name: "ciliumcidrgroups", path: "/apis/cilium.io/v2/ciliumcidrgroups", optional: true},
		{name: "ciliumnodes", path: "/apis/cilium.io/v2/ciliumnodes", optional: true},
		{name: "ciliumloadbalancerippools", path: "/apis/cilium.io/v2/ciliumloadbalancerippools", optional: true},
		{name: "config", path: "/api/v1" + own + "/configmaps/myelin-config", optional: true},
		{name: "daemonset", path: "/apis/apps/v1" + own + "/daemonsets/myelin", optional: true},
		{name: "proxy", path: "/apis/apps/v1" + own + "/daemonsets/myelin-proxy", optional: true},
		{name: "wireguard", path: "/apis/apps/v1" + own + "/daemonsets/myelin-wireguard", optional: true},
		{name: "operator", path: "/apis/apps/v1" + own + "/deployments/myelin-operator", optional: true},
		{name: "lease", path: "/apis/coordination.k8s.io/v1" + own + "/leases/myelin-operator", optional: true},
		{name: "events", path: "/api/v1" + own + "/events"},
	}
}

// pods adds all pods, and the logs of Myelin's.
func (c *Cluster) pods(ctx context.Context, a *Archive) {
	const file = "kubernetes/pods.json"
	var list corev1.PodList
	if err := c.Server.Get(ctx, "/api/v1/pods", &list); err != nil {
		a.Fail(file, err)
		return
	}
	for i := range list.Items {
		p := &list.Items[i]
		if c.ours(p) {
			c.logs(ctx, a, p)
			continue
		}
		strip(p)
	}
	a.addObject(file, &list)
}

func (c *Cluster) ours(p *corev1.Pod) bool {
	daemons := []string{"myelin", "myelin-proxy", "myelin-wireguard"}
	return p.Namespace == c.Namespace && (slices.Contains(daemons, p.Labels["k8s-app"]) ||
		p.Labels["app.kubernetes.io/name"] == "myelin-operator")
}

// strip takes from a pod what is its application's alone: commands, variables, volumes and annotations.
func strip(p *corev1.Pod) {
	p.Annotations, p.Spec.Volumes, p.ManagedFields, p.Spec.EphemeralContainers = nil, nil, nil, nil
	for _, containers := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range containers {
			old := &containers[i]
			containers[i] = corev1.Container{
				Name:            old.Name,
				Image:           old.Image,
				Ports:           old.Ports,
				Resources:       old.Resources,
				SecurityContext: old.SecurityContext,
			}
		}
	}
}

// logLines is how much of each log is collected.
const logLines = 5000

func (c *Cluster) logs(ctx context.Context, a *Archive, p *corev1.Pod) {
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		for _, previous := range []bool{false, true} {
			name := fmt.Sprintf("kubernetes/logs/%s-%s.log", p.Name, s.Name)
			if previous {
				name = fmt.Sprintf("kubernetes/logs/%s-%s-previous.log", p.Name, s.Name)
			}
			if previous && s.RestartCount == 0 || s.State.Waiting != nil && s.RestartCount == 0 {
				continue
			}
			query := url.Values{"container": {s.Name}, "tailLines": {fmt.Sprint(logLines)},
				"previous": {fmt.Sprint(previous)}}
			text, err := c.Server.Text(
				ctx,
				fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/log?%s", p.Namespace, p.Name, query.Encode()),
			)
			if err != nil {
				a.Fail(name, err)
				continue
			}
			a.add(name, text)
		}
	}
}
