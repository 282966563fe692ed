package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"myelin/cluster"
	"myelin/kube/crd"
	"myelin/operator/clusterpool"
)

// isStale is whether an object is gone, there already, or another version: the watch that told
// of that will tell more.
func isStale(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// keepNodes gives each Node a CiliumNode, with prefixes for its pods, and deletes
// those that have no Node.
func (o *Operator) keepNodes(ctx context.Context, w *world) error {
	nodes, known1 := w.nodes.All()
	objects, known2 := w.ciliumNodes.All()
	if !known1 || !known2 {
		return nil
	}
	var errs []error
	for key, c := range objects {
		if nodes[key] == nil && c.DeletionTimestamp == nil {
			o.Log.Info("a CiliumNode without a Node is deleted", "node", key.Name)
			collect(&errs, o.client.Delete(ctx, w.ciliumNodes.Resource().Path("", key.Name), string(c.UID)))
		}
	}
	grants := o.grants(w, nodes, objects)
	for key, n := range nodes {
		if n.Metadata.DeletionTimestamp == nil && !o.isCiliums(n) {
			collect(&errs, o.keepNode(ctx, w, n, objects[key], grants[key.Name]))
		}
	}
	return errors.Join(errs...)
}

// isCiliums is whether a node has Cilium's agent still, which writes its CiliumNode itself.
func (o *Operator) isCiliums(n *node) bool {
	return o.MigrateFromCilium && n.Metadata.Labels[CiliumNodeLabel] == "true"
}

// families are the pools of those that are on.
func (o *Operator) families() (list []clusterpool.Family) {
	if o.Config.IPv4.Enabled {
		list = append(list, clusterpool.Family{Pools: o.Config.ClusterPool.IPv4, Bits: o.Config.ClusterPool.IPv4Bits})
	}
	if o.Config.IPv6.Enabled {
		list = append(list, clusterpool.Family{Pools: o.Config.ClusterPool.IPv6, Bits: o.Config.ClusterPool.IPv6Bits})
	}
	return list
}

// grants are what nodes are to have. CiliumNodes that are about to be deleted count: their pods
// may be there still.
func (o *Operator) grants(w *world, nodes map[cluster.Key]*node,
	objects map[cluster.Key]*crd.CiliumNode) map[string]clusterpool.Grant {
	if o.Config.IPAMMode != "cluster-pool" {
		out := map[string]clusterpool.Grant{}
		for key, n := range nodes {
			list := n.Spec.PodCIDRs
			if len(list) == 0 && n.Spec.PodCIDR != "" {
				list = []string{n.Spec.PodCIDR}
			}
			out[key.Name] = clusterpool.Grant{PodCIDRs: list}
		}
		return out
	}
	var claims []clusterpool.Claim
	for key, c := range objects {
		claims = append(claims, clusterpool.Claim{Node: key.Name, Since: c.CreationTimestamp.Time,
			PodCIDRs: c.Spec.IPAM.PodCIDRs})
	}
	for key := range nodes {
		if objects[key] == nil {
			claims = append(claims, clusterpool.Claim{Node: key.Name})
		}
	}
	grants, use := clusterpool.Assign(o.families(), claims)
	o.metrics.setPrefixes(o.families(), use, len(nodes))
	return grants
}

// keepNode makes a CiliumNode what it is to be. Of the object only fields that are
// the operator's are written: Cilium's are left alone, but for addresses of its own on the node, which
// are pods' addresses from now on.
func (o *Operator) keepNode(ctx context.Context, w *world, n *node, have *crd.CiliumNode,
	grant clusterpool.Grant) error {
	name := n.Metadata.Name
	addresses := []crd.NodeAddress{}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
			addresses = append(addresses, crd.NodeAddress{Type: string(a.Type), IP: a.Address})
		}
	}
	spec := map[string]any{"addresses": addresses, "ipam": map[string]any{"podCIDRs": append([]string{},
		grant.PodCIDRs...)}}
	resource := w.ciliumNodes.Resource()
	var raw []byte
	switch {
	case have == nil:
		object := map[string]any{
			"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "spec": spec,
			"metadata": map[string]any{"name": name, "labels": n.Metadata.Labels,
				"ownerReferences": []any{map[string]any{
					"apiVersion": "v1", "kind": "Node", "name": name, "uid": n.Metadata.UID,
				}}},
		}
		if err := o.client.Create(ctx, resource.Path("", ""), object, &raw); err != nil {
			return fmt.Errorf("create CiliumNode %s: %w", name, err)
		}
	case !slices.Equal(have.Spec.Addresses, addresses) || !slices.Equal(have.Spec.IPAM.PodCIDRs, grant.PodCIDRs):
		spec["health"], spec["ingress"] = nil, nil
		// The version keeps two leaders from giving one prefix away twice.
		part := map[string]any{"metadata": map[string]any{"resourceVersion": have.ResourceVersion}, "spec": spec}
		if err := o.client.Merge(ctx, resource.Path("", name), part, &raw); err != nil {
			return fmt.Errorf("write CiliumNode %s: %w", name, err)
		}
	}
	if raw != nil {
		if err := w.ciliumNodes.Put(raw); err != nil {
			return fmt.Errorf("read CiliumNode %s: %w", name, err)
		}
	}
	return o.sayNode(ctx, w, n, have, grant.Problem)
}

// sayNode writes what is wrong with a node's prefixes into its CiliumNode's status, and
// tells it once by an event.
func (o *Operator) sayNode(ctx context.Context, w *world, n *node, have *crd.CiliumNode, problem string) error {
	name, before := n.Metadata.Name, ""
	if have != nil {
		before = have.Status.IPAM.Operator.Error
	}
	if before == problem {
		return nil
	}
	part := map[string]any{"status": map[string]any{"ipam": map[string]any{
		"operator-status": map[string]any{"error": problem},
	}}}
	var raw []byte
	if err := o.client.Merge(ctx, w.ciliumNodes.Resource().Path("", name)+"/status", part, &raw); err != nil {
		return fmt.Errorf("write the status of CiliumNode %s: %w", name, err)
	}
	if err := w.ciliumNodes.Put(raw); err != nil {
		return fmt.Errorf("read CiliumNode %s: %w", name, err)
	}
	if problem == "" || w.said[name] == problem {
		return nil
	}
	w.said[name] = problem
	o.Log.Warn("a node's podCIDRs have a problem", "node", name, "problem", problem)
	return o.event(ctx, n, "PodCIDRs", problem)
}

// event tells something of a Node.
func (o *Operator) event(ctx context.Context, n *node, reason, message string) error {
	now := metav1.NewTime(o.Now())
	event := &corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{Name: n.Metadata.Name + "." + strconv.FormatInt(now.UnixNano(), 16),
			Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.Metadata.Name,
			UID: n.Metadata.UID},
		Type: corev1.EventTypeWarning, Reason: reason, Message: message, FirstTimestamp: now,
		LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: "myelin-operator"},
	}
	events := coreKind("Event", "events")
	if err := o.client.Create(ctx, events.Path(metav1.NamespaceDefault, ""), event, nil); err != nil {
		return fmt.Errorf("tell of Node %s: %w", n.Metadata.Name, err)
	}
	return nil
}
