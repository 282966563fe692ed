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
	}{{"DaemonSet", c.DaemonSets}, {"pods such as", c.Pods[:min(len(c.Pods), 1)]},
		{"CustomResourceDefinitions such as", c.Definitions[:min(len(c.Definitions), 1)]}} {
		if len(p.list) > 0 {
			parts = append(parts, p.name+" "+strings.Join(p.list, ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// CiliumNodeLabel is "true" on nodes that are Cilium's still while a cluster goes over: its agents are kept to them,
// and Myelin's off them.
const CiliumNodeLabel = "myelin.io/cilium"

// Steps are how to go from Cilium to Myelin, node by node.
func (c *Cilium) Steps() string {
	namespace := metav1.NamespaceSystem
	if len(c.DaemonSets) > 0 {
		namespace, _, _ = strings.Cut(c.DaemonSets[0], "/")
	}
	return strings.NewReplacer("NAMESPACE", namespace, "LABEL", CiliumNodeLabel).Replace(steps)
}

const steps = `Cilium runs in this cluster. Both would program the same nodes. To go over, node by node, while pods ` +
	`of the other nodes run on:
  1. Say that all nodes are Cilium's, and keep its agents to such nodes. They restart once; packets don't wait for them:
     kubectl label nodes --all LABEL=true
     kubectl -n NAMESPACE patch daemonset cilium -p '{"spec": {"template": {"spec": {"nodeSelector": {"LABEL": "true"}}}}}'
     kubectl -n NAMESPACE rollout status daemonset cilium
  2. Stop Cilium's operator, which writes what will be ours, and taints nodes without its agent:
     kubectl -n NAMESPACE scale deployment cilium-operator --replicas=0
  3. Install Myelin, with podCIDRs as Cilium has them: myelin install --apply --wait --migrate-from-cilium …
     Its agents run on nodes without the label, so on none yet. It replaces definitions of kinds; objects stay as they are.
  4. For each NODE:
     kubectl drain NODE --ignore-daemonsets --delete-emptydir-data
     kubectl label node NODE LABEL-
     Delete the pods of DaemonSets that are there still and not on the host's network. When they and Cilium's agent have ended, Myelin's pod removes what
     Cilium has left on the node (kubectl -n NAMESPACE logs POD -c leave-cilium says what it waits for), and starts its agent. When that is ready:
     kubectl uncordon NODE
  5. Uninstall Cilium (helm uninstall, which leaves policies and definitions), and then: myelin upgrade --wait …, with the same values and without --migrate-from-cilium.
`

// DetectCilium looks for Cilium: its DaemonSet in any namespace, or pods of its agents together
// with definitions that bear its label. nil: there is none.
func DetectCilium(ctx context.Context, c *kube.Client) (*Cilium, error) {
	found := &Cilium{}
	daemons := kube.Resource{GroupVersionKind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "DaemonSet"},
		Plural: "daemonsets"}
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
	return kube.Resource{GroupVersionKind: schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1",
		Kind: "CustomResourceDefinition"}, Plural: "customresourcedefinitions"}
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
