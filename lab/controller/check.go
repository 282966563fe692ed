package controller

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"myelin/cluster"
)

// Check finds what an API server would refuse of a workload, field by field. The Pod template's containers are not
// looked at.
func Check(o Object) cluster.FieldErrors {
	c := &checks{}
	switch o := o.(type) {
	case *appsv1.Deployment:
		c.count("spec.replicas", o.Spec.Replicas)
		c.template(o.Spec.Selector, &o.Spec.Template, corev1.RestartPolicyAlways)
		if r := o.Spec.Strategy.RollingUpdate; r != nil {
			c.percent("spec.strategy.rollingUpdate.maxSurge", r.MaxSurge)
			c.percent("spec.strategy.rollingUpdate.maxUnavailable", r.MaxUnavailable)
		}
		c.oneOf("spec.strategy.type", string(o.Spec.Strategy.Type), "RollingUpdate", "Recreate")
	case *appsv1.ReplicaSet:
		c.count("spec.replicas", o.Spec.Replicas)
		c.template(o.Spec.Selector, &o.Spec.Template, corev1.RestartPolicyAlways)
	case *appsv1.StatefulSet:
		c.count("spec.replicas", o.Spec.Replicas)
		c.template(o.Spec.Selector, &o.Spec.Template, corev1.RestartPolicyAlways)
		c.oneOf("spec.podManagementPolicy", string(o.Spec.PodManagementPolicy), "OrderedReady", "Parallel")
		c.oneOf("spec.updateStrategy.type", string(o.Spec.UpdateStrategy.Type), "RollingUpdate", "OnDelete")
	case *appsv1.DaemonSet:
		c.template(o.Spec.Selector, &o.Spec.Template, corev1.RestartPolicyAlways)
		if r := o.Spec.UpdateStrategy.RollingUpdate; r != nil {
			c.percent("spec.updateStrategy.rollingUpdate.maxUnavailable", r.MaxUnavailable)
		}
		c.oneOf("spec.updateStrategy.type", string(o.Spec.UpdateStrategy.Type), "RollingUpdate", "OnDelete")
	case *batchv1.Job:
		c.job(o)
	}
	return c.found
}

type checks struct{ found cluster.FieldErrors }

func (c *checks) add(field, format string, args ...any) {
	c.found = append(c.found, cluster.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)})
}

func (c *checks) count(field string, n *int32) {
	if n != nil && *n < 0 {
		c.add(field, "%d must not be negative", *n)
	}
}

func (c *checks) oneOf(field, text string, values ...string) {
	if text != "" && !slices.Contains(values, text) {
		c.add(field, "%q is none of %q", text, values)
	}
}

func (c *checks) percent(field string, n *intstr.IntOrString) {
	if n == nil {
		return
	}
	if v, err := intstr.GetScaledValueFromIntOrPercent(n, 100, true); err != nil || v < 0 {
		c.add(field, "%q is neither a number of Pods nor a percentage", n.String())
	}
}

// template looks for a selector that does not select the template's Pods: such a controller would never be done.
func (c *checks) template(s *metav1.LabelSelector, t *corev1.PodTemplateSpec, policies ...corev1.RestartPolicy) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	switch {
	case s == nil:
		c.add("spec.selector", "is required")
	case err != nil:
		c.add("spec.selector", "%s", err)
	case selector.Empty():
		c.add("spec.selector", "must not be empty")
	case !selector.Matches(labels.Set(t.Labels)):
		c.add("spec.template.metadata.labels", "%s does not match spec.selector %s", labels.Set(t.Labels), selector)
	}
	c.restartPolicy(t, policies...)
}

func (c *checks) restartPolicy(t *corev1.PodTemplateSpec, policies ...corev1.RestartPolicy) {
	if policy := t.Spec.RestartPolicy; policy != "" && !slices.Contains(policies, policy) {
		c.add("spec.template.spec.restartPolicy", "%q is none of %q", policy, policies)
	}
}

func (c *checks) job(j *batchv1.Job) {
	c.count("spec.parallelism", j.Spec.Parallelism)
	c.count("spec.completions", j.Spec.Completions)
	c.count("spec.backoffLimit", j.Spec.BackoffLimit)
	c.restartPolicy(&j.Spec.Template, corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure)
	if j.Spec.Template.Spec.RestartPolicy == "" {
		c.add("spec.template.spec.restartPolicy", "is required: Never or OnFailure")
	}
	c.oneOf("spec.completionMode", string(value(j.Spec.CompletionMode, "")), "NonIndexed", "Indexed")
	if indexed(j) && j.Spec.Completions == nil {
		c.add("spec.completions", "is required where spec.completionMode is Indexed")
	}
	for field, set := range map[string]bool{
		"spec.podFailurePolicy": j.Spec.PodFailurePolicy != nil, "spec.successPolicy": j.Spec.SuccessPolicy != nil,
	} {
		if set {
			c.add(field, "the lab does not have it")
		}
	}
}
