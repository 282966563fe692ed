package parse

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"myelin/policy"
	"myelin/policy/identity"
)

// sourceKubernetes and sourceReserved are sources of labels.
const (
	sourceKubernetes = "k8s"
	sourceReserved   = "reserved"
)

// keys says which labels a selector's keys mean.
type keys struct {
	// prefix stands before the key.
	prefix string
	// sources: keys may be "source:key", and no source means any.
	sources bool
}

// plainKeys are those of Kubernetes' own selectors, namespaceKeys the same for
// the labels of a pod's namespace, and sourceKeys Cilium's.
func plainKeys() keys     { return keys{} }
func namespaceKeys() keys { return keys{prefix: identity.NamespaceLabelsKey} }
func sourceKeys() keys    { return keys{sources: true} }

// selector reads a label selector, labels first. It is never nil, so that it
// can't be taken for none. Requirements that are not understood are left out: it
// selects more then.
func (r *reader) selector(at string, s *metav1.LabelSelector, of keys) policy.Selector {
	out := policy.Selector{}
	if r.lostAll(at) {
		return out
	}
	for _, k := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		value := s.MatchLabels[k]
		field := at + ".matchLabels"
		req := policy.Requirement{Op: policy.In, Values: []string{value}}
		sound := r.sound(field+"."+k, func() {
			req.Source, req.Key = r.key(field, k, of)
			r.valid(field+"["+k+"]", value, validation.IsValidLabelValue)
		})
		if req.Source == sourceReserved && value == "" {
			req.Op, req.Values = policy.Exists, nil
		}
		if sound {
			out = append(out, req)
		}
	}
	for i, e := range s.MatchExpressions {
		var req policy.Requirement
		at := item(at, "matchExpressions", i)
		if r.sound(at, func() { req = r.expression(at, e, of) }) {
			out = append(out, req)
		}
	}
	return out
}

func (r *reader) key(field, text string, of keys) (source, key string) {
	source, key = sourceKubernetes, text
	if of.sources {
		var ok bool
		if source, key, ok = strings.Cut(text, ":"); !ok {
			source, key = policy.AnySource, text
		} else if source == "" {
			r.add(field, "key %q: there is no source before the colon", text)
		}
	}
	for _, reason := range validation.IsQualifiedName(key) {
		reason, _, _ := strings.Cut(reason, " (e.g.")
		r.add(field, "key %q: %s", text, reason)
	}
	if of.sources && strings.HasPrefix(key, identity.DerivedPolicyKey) && key != identity.ServiceAccountKey &&
		key != identity.ClusterKey {
		r.unenforced(field, "key %q: no pod has it, only %s and %s", text, identity.ServiceAccountKey,
			identity.ClusterKey)
	}
	return source, of.prefix + key
}

func (r *reader) expression(at string, e metav1.LabelSelectorRequirement, of keys) policy.Requirement {
	var out policy.Requirement
	out.Source, out.Key = r.key(at+".key", e.Key, of)
	switch e.Operator {
	case metav1.LabelSelectorOpIn:
		out.Op = policy.In
	case metav1.LabelSelectorOpNotIn:
		out.Op = policy.NotIn
	case metav1.LabelSelectorOpExists:
		out.Op = policy.Exists
	case metav1.LabelSelectorOpDoesNotExist:
		out.Op = policy.NotExists
	default:
		r.add(at+".operator", "%q is none of In, NotIn, Exists, DoesNotExist", e.Operator)
		return out
	}
	listed := out.Op == policy.In || out.Op == policy.NotIn
	switch {
	case listed && len(e.Values) == 0:
		r.add(at+".values", "must be set with operator %s", e.Operator)
	case !listed && len(e.Values) > 0:
		r.add(at+".values", "must not be set with operator %s", e.Operator)
	}
	for i, v := range e.Values {
		r.valid(item(at, "values", i), v, validation.IsValidLabelValue)
	}
	if listed {
		out.Values = slices.Compact(slices.Sorted(slices.Values(e.Values)))
	}
	return out
}

// inNamespace is met by the pods of a namespace.
func inNamespace(namespace string) policy.Requirement {
	return policy.Requirement{Source: sourceKubernetes, Key: identity.NamespaceKey, Op: policy.In,
		Values: []string{namespace}}
}

// inSomeNamespace is met by all pods, and by nothing else.
func inSomeNamespace() policy.Requirement {
	return policy.Requirement{Source: sourceKubernetes, Key: identity.NamespaceKey, Op: policy.Exists}
}

// pods reads Kubernetes' pair of selectors. Without a namespace selector it is
// pods of the policy's own namespace; without a pod selector all pods.
func (r *reader) pods(at string, spaces, pods *metav1.LabelSelector) policy.Selector {
	out := policy.Selector{}
	if pods != nil {
		out = r.selector(at+".podSelector", pods, plainKeys())
	}
	if spaces == nil {
		return append(out, inNamespace(r.ref.Namespace))
	}
	// Labels that a namespace lacks, a prefix of the world lacks too.
	return append(append(out, r.selector(at+".namespaceSelector", spaces, namespaceKeys())...), inSomeNamespace())
}
