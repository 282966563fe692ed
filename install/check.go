package install

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"myelin/chart"
	"myelin/config"
	"myelin/kube"
	"myelin/operator"
)

// check looks for other networks of the cluster, and refuses what can't work beside them.
func check(ctx context.Context, cluster *kube.Objects, c *config.Config, o Options) error {
	cilium, err := operator.DetectCilium(ctx, cluster.Client)
	if err != nil {
		return err
	}
	if cilium != nil && !o.MigrateFromCilium {
		return fmt.Errorf("Cilium runs in this cluster (%s): two networks can't have the same pods. Uninstall it, or "+
			"go over node by node with --migrate-from-cilium:\n%s", cilium, cilium.Steps())
	}
	if cilium != nil {
		if err := checkMigration(ctx, cluster, cilium); err != nil {
			return err
		}
	}
	proxies, err := cluster.Find(ctx, "apps/v1", "DaemonSet", "kube-proxy")
	if err != nil {
		return err
	}
	switch {
	case len(proxies) == 0 && !c.Services():
		o.Say("note: there is no kube-proxy, and kubeProxyReplacement is false: Services are not translated")
	case len(proxies) > 0 && c.KubeProxyReplacement:
		o.Say("note: %s runs, and kubeProxyReplacement is true: it can go when all agents are ready, kubectl -n %s "+
			"delete daemonset %s, and then on each node myelin cleanup --kube-proxy",
			proxies[0], proxies[0].Namespace, proxies[0].Name)
	}
	if len(proxies) == 0 && c.K8sServiceHost == "" {
		return errors.New("k8sServiceHost must be set: there is no kube-proxy that translates the Service " +
			"of the API server while agents start")
	}
	return nil
}

// checkMigration refuses where Cilium's agents would stay on nodes that Myelin comes to.
func checkMigration(ctx context.Context, cluster *kube.Objects, cilium *operator.Cilium) error {
	for _, name := range cilium.DaemonSets {
		namespace, name, _ := strings.Cut(name, "/")
		var d struct {
			Spec struct {
				Template struct {
					Spec struct {
						NodeSelector map[string]string `json:"nodeSelector"`
					} `json:"spec"`
				} `json:"template"`
			} `json:"spec"`
		}
		if err := cluster.Get(ctx, workload("DaemonSet", namespace, name), &d); err != nil {
			return err
		}
		if d.Spec.Template.Spec.NodeSelector[operator.CiliumNodeLabel] != "true" {
			return fmt.Errorf("DaemonSet %s/%s is not kept to nodes with the label %s=true, so that it would stay on "+
				"those that go over:\n%s",
				namespace, name, operator.CiliumNodeLabel, cilium.Steps())
		}
	}
	return nil
}

// checkMonitors refuses ServiceMonitors where the cluster doesn't know that kind.
func checkMonitors(ctx context.Context, cluster *kube.Objects, objects []chart.Object) error {
	for _, object := range objects {
		r := kube.RefOf(object.Content)
		if r.Kind != "ServiceMonitor" {
			continue
		}
		if _, err := cluster.Find(ctx, r.APIVersion, r.Kind, r.Name); errors.Is(err, kube.ErrNotFound) {
			return fmt.Errorf("serviceMonitor.enabled: the cluster has no kind %s of %s: "+
				"install the Prometheus operator's definitions first", r.Kind, r.APIVersion)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// imageOf splits the name of an image into what the chart's values have.
func imageOf(name string) map[string]any {
	if repository, digest, ok := strings.Cut(name, "@"); ok {
		return map[string]any{"repository": repository, "digest": digest}
	}
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		return map[string]any{"repository": name[:i], "tag": name[i+1:]}
	}
	return map[string]any{"repository": name}
}
