package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"myelin/chart"
	"myelin/kube"
	"myelin/operator"
)

// Uninstall deletes all that Apply or Helm wrote, has each node cleaned up, and waits for that. Definitions of kinds
// stay, and users' objects with them. Values that are not given are those of the cluster's ConfigMap and DaemonSet.
func Uninstall(ctx context.Context, cluster *kube.Objects, o Options) error {
	values, err := current(ctx, cluster, o.Namespace)
	if err != nil {
		return err
	}
	o.Values = chart.Over(values, o.Values)
	objects, _, err := Render(o.asking(ctx, cluster))
	if err != nil {
		return err
	}
	all := lasting(objects)
	slices.Reverse(all)
	settings := kube.Ref{APIVersion: "v1", Kind: "ConfigMap", Namespace: o.Namespace, Name: configName}
	for _, object := range all {
		if r := kube.RefOf(object.Content); r != settings {
			if err := remove(ctx, cluster, r, o.Say); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(removeLease(ctx, cluster, o), removeSecrets(ctx, cluster, o)); err != nil {
		return err
	}
	if err := cleanNodes(ctx, cluster, o, objects); err != nil {
		return err
	}
	return remove(ctx, cluster, settings, o.Say) // last: a retry needs the values
}

// current are values that the cluster's own objects tell: those that Apply was given; else, as of an installation by
// Helm, the configuration.
func current(ctx context.Context, cluster *kube.Objects, namespace string) (map[string]any, error) {
	values := map[string]any{}
	var file struct {
		Data map[string]string `json:"data"`
	}
	err := cluster.Get(ctx, kube.Ref{APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace,
		Name: configName}, &file)
	if err == nil {
		text, ok := file.Data[valuesKey]
		if !ok {
			text = file.Data["myelin.yaml"]
		}
		err = yaml.Unmarshal([]byte(text), &values)
	}
	if err != nil && !errors.Is(err, kube.ErrNotFound) {
		return nil, fmt.Errorf("read the configuration in force: %w", err)
	}
	var agents struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Image           string `json:"image"`
						ImagePullPolicy string `json:"imagePullPolicy"`
					} `json:"containers"`
				} `json:"spec"`
			} `json:"template"`
		} `json:"spec"`
	}
	err = cluster.Get(ctx, workload("DaemonSet", namespace, agentName), &agents)
	if err != nil && !errors.Is(err, kube.ErrNotFound) {
		return nil, err
	}
	if list := agents.Spec.Template.Spec.Containers; len(list) > 0 {
		image := imageOf(list[0].Image)
		image["pullPolicy"] = list[0].ImagePullPolicy
		values = chart.Over(values, map[string]any{"image": image})
	}
	return values, nil
}

// remove deletes an object and waits until it is gone; none is no error.
func remove(ctx context.Context, cluster *kube.Objects, r kube.Ref, say func(string, ...any)) error {
	err := cluster.Delete(ctx, r, hasPods(r))
	if errors.Is(err, kube.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for {
		err := cluster.Get(ctx, r, nil)
		if errors.Is(err, kube.ErrNotFound) {
			say("%s deleted", r)
			return nil
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s is not gone: %w", r, context.Cause(ctx)), err)
		}
	}
}

// cleanNodes runs the chart's own DaemonSet for it; the rest of its hooks is for Helm, which can't wait for a
// DaemonSet.
func cleanNodes(ctx context.Context, cluster *kube.Objects, o Options, objects []chart.Object) error {
	r := workload("DaemonSet", o.Namespace, cleanupName)
	for _, object := range objects {
		if kube.RefOf(object.Content) != r {
			continue
		}
		change, err := cluster.Apply(ctx, object.Content, manager)
		if err != nil {
			return err
		}
		o.Say("%s %s", r, change)
		if err := waitCleanup(ctx, cluster, o); err != nil {
			return err
		}
		return remove(ctx, cluster, r, o.Say)
	}
	o.Say("note: nodeCleanup.enabled is false: run myelin cleanup on each node")
	return nil
}

// removeLease: operators made it, no chart. They are gone, or would make it again.
func removeLease(ctx context.Context, cluster *kube.Objects, o Options) error {
	return remove(ctx, cluster, kube.Ref{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: o.Namespace,
		Name: operatorName}, o.Say)
}

// removeSecrets removes the certificates that operators made, and those only.
func removeSecrets(ctx context.Context, cluster *kube.Objects, o Options) error {
	var errs []error
	for _, name := range operator.Secrets() {
		r := kube.Ref{APIVersion: "v1", Kind: "Secret", Namespace: o.Namespace, Name: name}
		var have metav1.PartialObjectMetadata
		err := cluster.Get(ctx, r, &have)
		switch {
		case err == nil && have.Labels[operator.ManagedBy] == operator.Manager:
			errs = append(errs, remove(ctx, cluster, r, o.Say))
		case err != nil && !errors.Is(err, kube.ErrNotFound):
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// FinishCleanup waits until each node has been cleaned up, and removes what Helm doesn't know of: the end of `helm
// uninstall`.
func FinishCleanup(ctx context.Context, cluster *kube.Objects, o Options) error {
	if err := waitCleanup(ctx, cluster, o); err != nil {
		return err
	}
	return errors.Join(removeLease(ctx, cluster, o), removeSecrets(ctx, cluster, o))
}

// waitCleanup waits until each node has been cleaned up. On a node with pods of ours that is when they have ended.
func waitCleanup(ctx context.Context, cluster *kube.Objects, o Options) error {
	err := waitFor(ctx, cluster, workload("DaemonSet", o.Namespace, cleanupName), o.Say)
	if err != nil {
		return fmt.Errorf("clean up nodes: %w; kubectl -n %s logs -l app.kubernetes.io/name=%s -c cleanup tells why",
			err, o.Namespace, cleanupName)
	}
	return nil
}
