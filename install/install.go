// Package install brings Myelin into a cluster and out of it, by the chart's own objects and without Helm.
package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"myelin/chart"
	"myelin/config"
	"myelin/kube"
)

// release is the name under which the chart is rendered, and manager that under which fields are applied.
const (
	release = "myelin"
	manager = "myelin-install"
)

// Names of the chart's objects.
const (
	agentName    = "myelin"
	operatorName = "myelin-operator"
	cleanupName  = "myelin-cleanup"
	configName   = "myelin-config"
)

// valuesKey is where the ConfigMap has the values of an installation beside the configuration, for Uninstall: objects
// of the next version may need them.
const valuesKey = "values.yaml"

// Options of an installation.
type Options struct {
	Namespace string
	Version   string // of the program, and so of its image
	Values    map[string]any
	// MigrateFromCilium goes on where Cilium runs.
	MigrateFromCilium bool
	// lookup finds objects of the cluster while the chart is rendered
	lookup chart.Lookup
	// Say is told of each step.
	Say func(format string, args ...any)
}

// Render makes the objects, and has the agent's own reader validate their configuration, which knows contradictions
// that a schema can't. What has less effect than it seems is in warnings.
func Render(o Options) (objects []chart.Object, c *config.Config, err error) {
	if err := CheckNamespace(o.Namespace); err != nil {
		return nil, nil, err
	}
	objects, err = chart.Render(chart.Options{Release: release, Namespace: o.Namespace, Version: o.Version,
		Service: release, Values: o.Values, Lookup: o.lookup})
	if err != nil {
		return nil, nil, err
	}
	for _, object := range objects {
		if kube.RefOf(object.Content).Name != configName {
			continue
		}
		data, _ := object.Content["data"].(map[string]any)
		text, _ := data["myelin.yaml"].(string)
		if c, err = config.Parse([]byte(text), "values"); err != nil {
			return nil, nil, err
		}
		given, err := yaml.Marshal(o.Values)
		if err != nil {
			return nil, nil, fmt.Errorf("keep values: %w", err)
		}
		data[valuesKey] = string(given)
	}
	if c == nil {
		return nil, nil, errors.New("the chart has no ConfigMap " + configName)
	}
	return objects, c, nil
}

// CheckNamespace refuses what no namespace can be called.
func CheckNamespace(name string) error {
	if bad := validation.IsDNS1123Label(name); len(bad) > 0 {
		return fmt.Errorf("namespace %q: %s", name, strings.Join(bad, "; "))
	}
	return nil
}

// asking is o, with a cluster to look objects up in.
func (o Options) asking(ctx context.Context, cluster *kube.Objects) Options {
	o.lookup = func(apiVersion, kind, namespace, name string) (object map[string]any, err error) {
		err = cluster.Get(ctx, kube.Ref{APIVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name}, &object)
		if errors.Is(err, kube.ErrNotFound) {
			return nil, nil
		}
		return object, err
	}
	return o
}

// IsHook reports whether an object is for Helm's moments, and not for always.
func IsHook(object chart.Object) bool {
	meta, _ := object.Content["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	return annotations["helm.sh/hook"] != nil
}

// order is the order of dependencies: accounts and rights before pods.
func order(object chart.Object) int {
	return slices.Index([]string{
		"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ConfigMap",
		"Service", "ServiceMonitor", "PodDisruptionBudget",
		"DaemonSet", "Deployment", "Job",
	}, kube.RefOf(object.Content).Kind)
}

// lasting are the objects without hooks, in their order.
func lasting(objects []chart.Object) []chart.Object {
	list := slices.DeleteFunc(slices.Clone(objects), IsHook)
	slices.SortStableFunc(list, func(a, b chart.Object) int { return cmp.Compare(order(a), order(b)) })
	return list
}

// Installed reports whether the cluster has Myelin's DaemonSet.
func Installed(ctx context.Context, cluster *kube.Objects, namespace string) (bool, error) {
	err := cluster.Get(ctx, workload("DaemonSet", namespace, agentName), nil)
	if errors.Is(err, kube.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func workload(kind, namespace, name string) kube.Ref {
	return kube.Ref{APIVersion: "apps/v1", Kind: kind, Namespace: namespace, Name: name}
}

// migrating are the values, and that the operator goes on where Cilium runs.
func migrating(values map[string]any) map[string]any {
	given, _ := values["operator"].(map[string]any)
	operator := map[string]any{"migrateFromCilium": true}
	maps.Copy(operator, given)
	out := map[string]any{"operator": operator}
	for key, value := range values {
		if key != "operator" {
			out[key] = value
		}
	}
	return out
}

// Apply looks at what else the cluster has for a network, writes all objects, and removes those that an earlier
// installation had and this one has not. It can be repeated.
func Apply(ctx context.Context, cluster *kube.Objects, o Options) error {
	if o.MigrateFromCilium {
		o.Values = migrating(o.Values)
	}
	objects, c, err := Render(o.asking(ctx, cluster))
	if err != nil {
		return err
	}
	for _, w := range c.Warnings {
		o.Say("note: %s", w.Error())
	}
	if err := check(ctx, cluster, c, o); err != nil {
		return err
	}
	if err := checkMonitors(ctx, cluster, objects); err != nil {
		return err
	}
	have := map[kube.Ref]bool{}
	for _, object := range lasting(objects) {
		r := kube.RefOf(object.Content)
		have[r] = true
		change, err := cluster.Apply(ctx, object.Content, manager)
		if err != nil {
			return err
		}
		o.Say("%s %s", r, change)
	}
	return prune(ctx, cluster, o, have)
}

// most are the values with which the chart has all the objects that it can have, but for those of cert-manager.
func most() map[string]any {
	on := map[string]any{"enabled": true}
	metrics := map[string]any{"enabled": true, "serviceMonitor": on}
	return map[string]any{
		"prometheus": metrics,
		"operator":   map[string]any{"prometheus": metrics, "podDisruptionBudget": on, "replicas": 2},
		"hubble": map[string]any{
			"relay": map[string]any{"enabled": true, "podDisruptionBudget": on, "replicas": 2, "prometheus": metrics},
			"ui": map[string]any{"enabled": true, "podDisruptionBudget": on, "replicas": 2,
				"ingress": map[string]any{"enabled": true, "hosts": []any{"hubble.example.org"}}},
			"metrics": map[string]any{"enabled": []any{"drop"}, "serviceMonitor": on, "dashboards": on},
			"export":  map[string]any{"dynamic": on},
		},
		"encryption": map[string]any{"enabled": true, "type": "wireguard",
			"wireguard": map[string]any{"userspaceFallback": true}},
	}
}

// prune deletes what the chart can have and this rendering has not.
func prune(ctx context.Context, cluster *kube.Objects, o Options, have map[kube.Ref]bool) error {
	values := chart.Over(most(), imageOfValues(o.Values))
	all, err := chart.Render(chart.Options{
		Release: release, Namespace: o.Namespace, Version: o.Version, Service: release, Values: values,
	})
	if err != nil {
		return err
	}
	for _, object := range lasting(all) {
		r := kube.RefOf(object.Content)
		// not ours, where the values say so; and a namespace has Secrets of users
		if have[r] || strings.HasPrefix(r.Kind, "ClusterRole") ||
			slices.Contains([]string{"Namespace", "Secret", "ServiceAccount"}, r.Kind) {
			continue
		}
		if err := remove(ctx, cluster, r, o.Say); err != nil {
			return err
		}
	}
	return nil
}

// imageOfValues is what values say of the image, without which a chart of no version names none.
func imageOfValues(values map[string]any) map[string]any {
	if values["image"] == nil {
		return nil
	}
	return map[string]any{"image": values["image"]}
}

// Wait waits until all that Apply wrote runs everywhere, or ctx ends.
func Wait(ctx context.Context, cluster *kube.Objects, o Options) error {
	objects, _, err := Render(o.asking(ctx, cluster))
	if err != nil {
		return err
	}
	for _, object := range lasting(objects) {
		r := kube.RefOf(object.Content)
		if !hasPods(r) {
			continue
		}
		if err := waitFor(ctx, cluster, r, o.Say); err != nil {
			return err
		}
	}
	return nil
}

func hasPods(r kube.Ref) bool { return r.Kind == "DaemonSet" || r.Kind == "Deployment" }

// poll is how often a cluster is asked while waiting.
const poll = 300 * time.Millisecond

// waitFor waits until all pods of a workload are of its newest version and ready.
func waitFor(ctx context.Context, cluster *kube.Objects, r kube.Ref, say func(string, ...any)) error {
	last := ""
	for {
		var w progress
		err := cluster.Get(ctx, r, &w)
		if err == nil && w.done() {
			say("%s: %s", r, w)
			return nil
		}
		if text := w.String(); err == nil && text != last {
			say("%s: %s", r, text)
			last = text
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s is not ready: %s: %w", r, w, context.Cause(ctx)), err)
		}
	}
}

// progress is of a DaemonSet or a Deployment.
type progress struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Generation int64 `json:"generation"`
	} `json:"metadata"`
	Spec struct {
		Replicas int `json:"replicas"`
		Strategy struct {
			Type string `json:"type"`
		} `json:"updateStrategy"` // of DaemonSets
	} `json:"spec"`
	Status struct {
		ObservedGeneration int64 `json:"observedGeneration"`
		// Of DaemonSets.
		Desired int `json:"desiredNumberScheduled"`
		Ready   int `json:"numberReady"`
		Updated int `json:"updatedNumberScheduled"`
		// Of Deployments.
		ReadyReplicas   int `json:"readyReplicas"`
		UpdatedReplicas int `json:"updatedReplicas"`
		Replicas        int `json:"replicas"`
	} `json:"status"`
}

func (p progress) numbers() (ready, updated, wanted int) {
	if p.Kind == "Deployment" {
		return p.Status.ReadyReplicas, p.Status.UpdatedReplicas, p.Spec.Replicas
	}
	return p.Status.Ready, p.Status.Updated, p.Status.Desired
}

// done: a Deployment of more replicas than nodes can hold is never done, as for Kubernetes. Pods of a DaemonSet that
// are replaced only when users delete them may be of a version before.
func (p progress) done() bool {
	ready, updated, wanted := p.numbers()
	return p.Status.ObservedGeneration >= p.Metadata.Generation && p.Metadata.Generation > 0 && ready >= wanted &&
		(updated >= wanted || p.Spec.Strategy.Type == "OnDelete") &&
		(p.Kind != "Deployment" || p.Status.Replicas <= wanted)
}

// String is how many pods are ready.
func (p progress) String() string {
	ready, updated, wanted := p.numbers()
	return fmt.Sprintf("%d of %d ready, %d of this version", ready, wanted, updated)
}
