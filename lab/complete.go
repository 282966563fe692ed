package lab

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"myelin/config"
	"myelin/config/key"
	"myelin/lab/allocate"
	"myelin/lab/controller"
)

// complete adds to objects what an API server would: addresses and ports of Services, and the UIDs of workloads. What
// the lab has of an object already, it keeps.
func (l *Lab) complete(objects, present []*object) error {
	ranges, err := l.ranges()
	if err != nil {
		return err
	}
	earlier := map[string]*object{}
	for _, o := range present {
		earlier[o.fileName()] = o
	}
	a := allocate.New(ranges)
	incoming := map[string]bool{}
	for _, o := range objects {
		incoming[o.fileName()] = true
	}
	for _, o := range present {
		if s, ok := o.typed.(*corev1.Service); ok && !incoming[o.fileName()] {
			a.Take(s) // two that were written to the directory by hand are for the agents to refuse
		}
	}
	var services []*object
	for _, o := range objects {
		s, ok := o.typed.(*corev1.Service)
		if !ok || o.strict() != nil {
			continue // agents refuse what is wrong with it, and need to see it
		}
		if faults := a.Take(s); len(faults) > 0 {
			return fmt.Errorf("%s: %w", o, faults)
		}
		services = append(services, o)
	}
	for _, o := range services {
		if err := o.completeService(a, earlier[o.fileName()]); err != nil {
			return fmt.Errorf("%s: %w", o, err)
		}
	}
	for _, o := range objects {
		if o.isNode() {
			if err := o.keepKey(earlier[o.fileName()]); err != nil {
				return fmt.Errorf("%s: %w", o, err)
			}
		}
		if o.isWorkload() {
			if err := o.add(o.typed, earlier[o.fileName()]); err != nil {
				return fmt.Errorf("%s: %w", o, err)
			}
		}
	}
	return nil
}

// completeService leaves a Service that lacks nothing as it was written.
func (o *object) completeService(a *allocate.Allocator, earlier *object) error {
	given := o.typed.(*corev1.Service)
	s := given.DeepCopy()
	var old *corev1.Service
	if earlier != nil {
		old, _ = earlier.typed.(*corev1.Service)
	}
	if faults := a.Complete(s, old); len(faults) > 0 {
		return faults
	}
	before, err1 := json.Marshal(given.Spec)
	after, err2 := json.Marshal(s.Spec)
	if err := errors.Join(err1, err2); err != nil || bytes.Equal(before, after) {
		return err
	}
	return o.add(s, earlier)
}

// add makes typed what agents read of the object, with a UID, and what was applied in the annotation that kubectl uses.
func (o *object) add(typed controller.Object, earlier *object) error {
	applied, err := yaml.YAMLToJSON(o.data)
	if err != nil {
		return err
	}
	full := typed.DeepCopyObject().(controller.Object)
	uid, created := newUID(), metav1.NewTime(time.Now().Truncate(time.Second))
	if earlier != nil && earlier.UID != "" {
		uid, created = earlier.UID, earlier.CreationTimestamp
	}
	if full.GetUID() == "" {
		full.SetUID(uid)
	}
	if t := full.GetCreationTimestamp(); t.IsZero() {
		full.SetCreationTimestamp(created)
	}
	annotations := map[string]string{corev1.LastAppliedConfigAnnotation: string(applied)}
	for k, v := range full.GetAnnotations() {
		annotations[k] = v
	}
	full.SetAnnotations(annotations)
	o.applied = o.data
	if o.data, err = yaml.Marshal(full); err != nil {
		return err
	}
	o.typed = full
	return nil
}

// appliedOf is what was applied of a document that the lab may have added to.
func appliedOf(data []byte) []byte {
	var head object
	if !bytes.Contains(data, []byte(corev1.LastAppliedConfigAnnotation)) || yaml.Unmarshal(data, &head) != nil {
		return data
	}
	if applied, ok := head.Annotations[corev1.LastAppliedConfigAnnotation]; ok {
		return []byte(applied)
	}
	return data
}

func newUID() types.UID {
	id := randomHex(16)
	return types.UID(strings.Join([]string{id[:8], id[8:12], id[12:16], id[16:20], id[20:]}, "-"))
}

// ranges are those of the lab's options and of the agents' configuration. Families that no node's pods have come last.
func (l *Lab) ranges() (allocate.Ranges, error) {
	r := allocate.Ranges{Services: slices.Clone(l.opts.ServiceCIDRs)}
	pods := func(p netip.Prefix) int {
		for _, n := range l.state.Nodes {
			for i, cidr := range n.PodCIDRs {
				if cidr.Addr().Is4() == p.Addr().Is4() {
					return i
				}
			}
		}
		return 2
	}
	if l.podFamilies() > 0 {
		r.Services = slices.DeleteFunc(r.Services, func(p netip.Prefix) bool { return pods(p) == 2 })
	}
	slices.SortStableFunc(r.Services, func(a, b netip.Prefix) int { return cmp.Compare(pods(a), pods(b)) })
	ports, err := l.nodePortRange()
	r.FirstPort, r.LastPort = int32(ports.First), int32(ports.Last)
	return r, err
}

// podFamilies counts the families of the pods' ranges: none where nodes have no ranges.
func (l *Lab) podFamilies() int {
	families := map[bool]bool{}
	for _, n := range l.state.Nodes {
		for _, cidr := range n.PodCIDRs {
			families[cidr.Addr().Is4()] = true
		}
	}
	return len(families)
}

// nodePortRange is nodePort.range of the configuration that all agents get.
func (l *Lab) nodePortRange() (key.PortRange, error) {
	fallback := key.PortRange{First: 30000, Last: 32767}
	keys, err := l.configKeys()
	if err != nil {
		return fallback, err
	}
	nodePort, _ := keys["nodePort"].(map[string]any)
	text, ok := nodePort["range"]
	if !ok {
		return fallback, nil
	}
	data, err := yaml.Marshal(map[string]any{"nodePort": map[string]any{"range": text}})
	if err != nil {
		return fallback, err
	}
	c, err := config.Parse(data, "configuration of the agents")
	if err != nil {
		return fallback, err
	}
	return c.NodePort.Range, nil
}
