package operator

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"myelin/kube"
	"myelin/kube/crd"
)

// Cilium is an installation of Cilium that runs in the cluster.
type Cilium struct {
	// DaemonSets are those named cilium, as "namespace/name".
	DaemonSets []string
	// Definitions are CustomResourceDefinitions with Cilium's label, and Pods one of those
	// that run its agents.
	Definitions []string
	Pods        []string
}

// String is what was found, in words.
func (c *Cilium) String() string {
	var parts []string
	for _, p := range []struct {
		name string
		list []string
	}{{"DaemonSet", c.DaemonSets}, {"pods such as", c.Pods[:min(len(c.Pods), 1)]}, {"CustomResourceDefinitions such as", c.Definitions[:min(len(c.Definitions), 1)]}} {
		if len(p.list) > 0 {
			parts = append(parts, p.name+" "+strings.Join(p.list, ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// Steps are how to go from Cilium to Myelin, node by node.
func (*Cilium) Steps() string {
	return `Cilium runs in this cluster. Both would program the same nodes, and its definitions are Cilium's own. To migrate:
  1. Stop Cilium's operator, so that nobody writes its definitions: kubectl -n NAMESPACE scale deployment cilium-operator --replicas=0
  2. Keep Cilium's agents off nodes that have been taken over, by a label: patch the DaemonSet cilium with nodeSelector {myelin.io/cilium: "true"}, after labelling all nodes so.
  3. Start Myelin's operator with --migrate-from-cilium: it replaces the definitions; objects stay as they are.
  4. Node by node: drain it, remove the label, remove /etc/cni/net.d/05-cilium.conflist and reboot the node or delete Cilium's links, let Myelin's agent start, uncordon it.
  5. When all nodes are done: delete the DaemonSet cilium and what belongs to it, and start the operator without --migrate-from-cilium.
`
}

// DetectCilium looks for Cilium: its DaemonSet in any namespace, or pods of its agents together
// with definitions that bear its label. nil: there is none.
func DetectCilium(ctx context.Context, c *kube.Client) (*Cilium, error) {
	found := &Cilium{}
	daemons := kube.Resource{GroupVersionKind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "DaemonSet"}, Plural: "daemonsets"}
	var err error
	if found.DaemonSets, err = names(ctx, c, daemons.Path("", "")+"?fieldSelector=metadata.name%3Dcilium"); err != nil {
		return nil, fmt.Errorf("look for Cilium's DaemonSet: %w", err)
	}
	pods := kube.Resource{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod"), Plural: "pods"}
	if found.Pods, err = names(ctx, c, pods.Path("", "")+"?limit=10&labelSelector=k8s-app%3Dcilium"); err != nil {
		return nil, fmt.Errorf("look for Cilium's pods: %w", err)
	}
	defs := definitionsResource()
	if found.Definitions, err = names(ctx, c, defs.Path("", "")+"?labelSelector="+crd.CiliumLabel); err != nil {
		return nil, fmt.Errorf("look for Cilium's definitions: %w", err)
	}
	if len(found.DaemonSets) > 0 || len(found.Pods) > 0 && len(found.Definitions) > 0 {
		return found, nil
	}
	return nil, nil
}

func definitionsResource() kube.Resource {
	return kube.Resource{GroupVersionKind: schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}, Plural: "customresourcedefinitions"}
}

// names are those of a list's objects.
func names(ctx context.Context, c *kube.Client, path string) (list []string, err error) {
	var got struct {
		Items []struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
		} `json:"items"`
	}
	if err := c.Get(ctx, path, &got); err != nil {
		return nil, err
	}
	for _, o := range got.Items {
		name := o.Metadata.Name
		if o.Metadata.Namespace != "" {
			name = o.Metadata.Namespace + "/" + name
		}
		list = append(list, name)
	}
	return list, nil
}
