package operator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"myelin/cluster"
	"myelin/kube/crd"
	"myelin/operator/lbipam"
)

// Annotations of Services, under both of their names.
const (
	annotationIPs     = "lbipam.cilium.io/ips"
	annotationSharing = "lbipam.cilium.io/sharing-key"
	annotationAcross  = "lbipam.cilium.io/sharing-cross-namespace"
	oldIPs            = "io.cilium/lb-ipam-ips"
	oldSharing        = "io.cilium/lb-ipam-sharing-key"
	oldAcross         = "io.cilium/lb-ipam-sharing-cross-namespace"
)

// satisfied is the condition of Services that says whether they have all addresses.
const satisfied = "cilium.io/IPAMRequestSatisfied"

// keepServices gives Services of type LoadBalancer addresses out of pools.
func (o *Operator) keepServices(ctx context.Context, w *world) error {
	services, known1 := w.services.All()
	objects, known2 := w.pools.All()
	if !known1 || !known2 || o.Config.DefaultLBServiceIPAM == "none" && len(objects) == 0 {
		return nil
	}
	var errs []error
	pools := make([]lbipam.Pool, 0, len(objects))
	faults := map[string]string{}
	for key, p := range objects {
		pool, err := readPool(p)
		if err != nil {
			faults[key.Name] = err.Error()
		}
		pools = append(pools, pool)
	}
	var wanted []lbipam.Service
	for key, s := range services {
		if o.ours(s) && (len(objects) > 0 || condition(s) != nil) {
			wanted = append(wanted, request(key, s))
		}
	}
	answers, usage := lbipam.Allocate(pools, wanted)
	lacking := 0
	for key, s := range services {
		answer, ok := answers[key]
		switch {
		case ok:
			if answer.Reason != "" {
				lacking++
			}
			collect(&errs, o.writeService(ctx, w, key, s, &answer))
		case condition(s) != nil && s.Spec.Type != corev1.ServiceTypeLoadBalancer:
			collect(&errs, o.writeService(ctx, w, key, s, nil))
		}
	}
	for key, p := range objects {
		collect(&errs, o.writePool(ctx, w, key, p, usage[key.Name], faults[key.Name]))
	}
	o.metrics.setPools(usage, len(wanted), lacking)
	return errors.Join(errs...)
}

// ours is whether a Service gets its addresses here: one without a class, unless
// other controllers have those, or of a class that Cilium has for such.
func (o *Operator) ours(s *corev1.Service) bool {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.DeletionTimestamp != nil {
		return false
	}
	if s.Spec.LoadBalancerClass == nil {
		return o.Config.DefaultLBServiceIPAM == "lbipam"
	}
	return slices.Contains([]string{"io.cilium/bgp-control-plane", "io.cilium/l2-announcer"}, *s.Spec.LoadBalancerClass)
}

// readPool reads a pool; one with an error has no addresses.
func readPool(p *crd.CiliumLoadBalancerIPPool) (lbipam.Pool, error) {
	out := lbipam.Pool{Name: p.Name, Created: p.CreationTimestamp.Time, Disabled: p.Spec.Disabled}
	if p.Spec.ServiceSelector != nil {
		var err error
		if out.Selector, err = metav1.LabelSelectorAsSelector(p.Spec.ServiceSelector); err != nil {
			return out, fmt.Errorf("spec.serviceSelector: %w", err)
		}
	}
	var ranges []lbipam.Range
	for i, b := range p.Spec.Blocks {
		r, err := readBlock(b, p.Spec.AllowFirstLastIPs != "No")
		if err != nil {
			return out, fmt.Errorf("spec.blocks[%d]: %w", i, err)
		}
		ranges = append(ranges, r)
	}
	out.Ranges = ranges
	return out, nil
}

func readBlock(b crd.PoolBlock, edges bool) (r lbipam.Range, err error) {
	if b.CIDR != "" {
		p, err := netip.ParsePrefix(b.CIDR)
		if err != nil || p.Addr().Is4In6() {
			return r, fmt.Errorf("cidr: %q is not a CIDR such as 192.0.2.0/24 or 2001:db8::/64", b.CIDR)
		}
		return lbipam.FromPrefix(p, edges), nil
	}
	if r.First, err = address(b.Start); err != nil {
		return r, fmt.Errorf("start: %w", err)
	}
	r.Last = r.First
	if b.Stop != "" {
		if r.Last, err = address(b.Stop); err != nil {
			return r, fmt.Errorf("stop: %w", err)
		}
	}
	if r.First.Is4() != r.Last.Is4() || r.Last.Less(r.First) {
		return r, fmt.Errorf("stop: %s is not behind %s", r.Last, r.First)
	}
	return r, nil
}

func address(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Is4In6() || a.Zone() != "" {
		return a, fmt.Errorf("%q is no address", text)
	}
	return a, nil
}

// annotation is what one of two names has, the first before the second.
func annotation(s *corev1.Service, names ...string) string {
	for _, name := range names {
		if v := s.Annotations[name]; v != "" {
			return v
		}
	}
	return ""
}

func words(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// request is what a Service asks for.
func request(key cluster.Key, s *corev1.Service) lbipam.Service {
	out := lbipam.Service{
		Key: key, Created: s.CreationTimestamp.Time, Labels: s.Labels, Sharing: annotation(s, annotationSharing,
			oldSharing),
		Namespaces: words(annotation(s, annotationAcross, oldAcross)), Selector: s.Spec.Selector,
		Local: s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		IPv4:  slices.Contains(s.Spec.IPFamilies, corev1.IPv4Protocol), IPv6: slices.Contains(s.Spec.IPFamilies,
			corev1.IPv6Protocol),
	}
	asked := words(annotation(s, annotationIPs, oldIPs))
	if len(asked) == 0 && s.Spec.LoadBalancerIP != "" {
		asked = []string{s.Spec.LoadBalancerIP}
	}
	for _, text := range asked {
		if a, err := address(text); err != nil {
			out.AskedWrong = append(out.AskedWrong, text)
		} else if !slices.Contains(out.Asked, a) {
			out.Asked = append(out.Asked, a)
		}
	}
	for _, p := range s.Spec.Ports {
		out.Ports = append(out.Ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		if a, err := address(in.IP); err == nil {
			out.Has = append(out.Has, a)
		}
	}
	return out
}

func condition(s *corev1.Service) *metav1.Condition {
	return meta.FindStatusCondition(s.Status.Conditions, satisfied)
}

// writeService writes addresses and the condition; nil takes both away.
func (o *Operator) writeService(ctx context.Context, w *world, key cluster.Key, s *corev1.Service,
	answer *lbipam.Answer) error {
	conditions := slices.Clone(s.Status.Conditions)
	ingress := []corev1.LoadBalancerIngress{}
	changed := false
	if answer == nil {
		changed = meta.RemoveStatusCondition(&conditions, satisfied)
	} else {
		c := metav1.Condition{Type: satisfied, Status: metav1.ConditionTrue, Reason: "satisfied",
			ObservedGeneration: s.Generation, LastTransitionTime: metav1.NewTime(o.Now())}
		if answer.Reason != "" {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, answer.Reason, answer.Message
		}
		changed = meta.SetStatusCondition(&conditions, c)
		mode := corev1.LoadBalancerIPModeVIP
		for _, a := range answer.Addresses {
			ingress = append(ingress, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &mode})
		}
	}
	sameIP := func(a, b corev1.LoadBalancerIngress) bool { return a.IP == b.IP }
	if !changed && slices.EqualFunc(ingress, s.Status.LoadBalancer.Ingress, sameIP) {
		return nil
	}
	// Conditions are a list, others' among them: of another version nothing is written.
	part := map[string]any{
		"metadata": map[string]any{"resourceVersion": s.ResourceVersion},
		"status":   map[string]any{"loadBalancer": map[string]any{"ingress": ingress}, "conditions": conditions},
	}
	var raw []byte
	if err := o.client.Merge(ctx, w.services.Resource().Path(key.Namespace, key.Name)+"/status", part,
		&raw); err != nil {
		return fmt.Errorf("write the status of Service %s: %w", key, err)
	}
	return w.services.Put(raw)
}

// Conditions of pools; the messages of the last three are numbers.
const (
	poolConflict  = "cilium.io/PoolConflict"
	poolTotal     = "cilium.io/IPsTotal"
	poolAvailable = "cilium.io/IPsAvailable"
	poolUsed      = "cilium.io/IPsUsed"
)

// writePool says how a pool is doing.
func (o *Operator) writePool(ctx context.Context, w *world, key cluster.Key, p *crd.CiliumLoadBalancerIPPool,
	u lbipam.Usage, fault string) error {
	conditions := slices.Clone(p.Status.Conditions)
	now := metav1.NewTime(o.Now())
	conflict := metav1.Condition{Type: poolConflict, Status: metav1.ConditionFalse, Reason: "resolved"}
	switch {
	case fault != "":
		conflict.Status, conflict.Reason, conflict.Message = metav1.ConditionTrue, "invalid", fault
	case u.Conflict != "":
		conflict.Status, conflict.Reason = metav1.ConditionTrue, "cidr_overlap"
		conflict.Message = "pool " + u.Conflict + ", which is older, has some of the addresses"
	}
	all := []metav1.Condition{conflict}
	for _, n := range []struct {
		name  string
		count int64
	}{{poolTotal, u.Total}, {poolAvailable, u.Available()}, {poolUsed, u.Used}} {
		all = append(all, metav1.Condition{Type: n.name, Status: metav1.ConditionUnknown, Reason: "noreason",
			Message: fmt.Sprint(n.count)})
	}
	changed := false
	for _, c := range all {
		c.ObservedGeneration, c.LastTransitionTime = p.Generation, now
		changed = meta.SetStatusCondition(&conditions, c) || changed
	}
	if !changed {
		return nil
	}
	part := map[string]any{"metadata": map[string]any{"resourceVersion": p.ResourceVersion},
		"status": map[string]any{"conditions": conditions}}
	var raw []byte
	if err := o.client.Merge(ctx, w.pools.Resource().Path("", key.Name)+"/status", part, &raw); err != nil {
		return fmt.Errorf("write the status of CiliumLoadBalancerIPPool %s: %w", key, err)
	}
	return w.pools.Put(raw)
}
