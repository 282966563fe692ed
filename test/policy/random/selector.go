package random

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// selector is one over the labels of keys, each key's name made by name. A fourth
// of all are empty.
func (m *maker) selector(name func(key string) string) metav1.LabelSelector {
	var s metav1.LabelSelector
	switch n := m.r.IntN(100); {
	case n < 25:
	case n < 65:
		s.MatchLabels = map[string]string{name(pick(m.r, keys())): pick(m.r, values())}
	case n < 90:
		s.MatchExpressions = several(m, 2, func() metav1.LabelSelectorRequirement { return m.expression(name) })
	default:
		s.MatchLabels = map[string]string{name("app"): pick(m.r, values())}
		s.MatchExpressions = []metav1.LabelSelectorRequirement{m.expression(name)}
	}
	return s
}

func (m *maker) expression(name func(key string) string) metav1.LabelSelectorRequirement {
	e := metav1.LabelSelectorRequirement{Key: name(pick(m.r, keys()))}
	e.Operator = pick(m.r, []metav1.LabelSelectorOperator{
		metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists,
		metav1.LabelSelectorOpDoesNotExist,
	})
	if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
		first := m.r.IntN(len(values()))
		e.Values = values()[first:min(first+1+m.r.IntN(2), len(values()))]
	}
	return e
}

// plain leaves a key as it is.
func plain(key string) string { return key }

// sourced gives keys one of the forms that Cilium has for them. A few become
// those of labels that are derived.
func (m *maker) sourced(key string) string {
	n := m.r.IntN(256)
	if n>>4 == 0 && slices.Contains(keys(), key) {
		key = "io.cilium.k8s.policy." + []string{"cluster", "serviceaccount", "serviceaccount", "serviceaccount"}[n>>2]
	}
	return []string{"", "", "any:", "k8s:"}[n&3] + key
}

// namespaceSelector is one over labels of namespaces, or for one by its name.
func (m *maker) namespaceSelector() metav1.LabelSelector {
	if m.odds(25) {
		return metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: pick(m.r,
			m.w.Namespaces).Name}}
	}
	return m.selector(plain)
}

// endpointSelector is a peer of a Cilium policy: pods of the policy's namespace, of others, or peers with a reserved
// label.
func (m *maker) endpointSelector() metav1.LabelSelector {
	s := m.selector(m.sourced)
	namespace := m.sourced("io.kubernetes.pod.namespace")
	switch n := m.r.IntN(100); {
	case n < 40:
	case n < 60:
		set(&s, namespace, pick(m.r, m.w.Namespaces).Name)
	case n < 70:
		s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: namespace,
			Operator: metav1.LabelSelectorOpExists})
	case n < 90:
		set(&s, m.sourced("io.cilium.k8s.namespace.labels."+pick(m.r, keys())), pick(m.r, values()))
	case n < 95:
		s = metav1.LabelSelector{MatchLabels: map[string]string{"reserved:" + pick(m.r,
			[]string{"host", "remote-node"}): ""}}
	default:
		s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{
			Key:      "reserved:" + pick(m.r, []string{"host", "remote-node", "kube-apiserver"}),
			Operator: metav1.LabelSelectorOpDoesNotExist,
		})
	}
	return s
}

func set(s *metav1.LabelSelector, key, value string) {
	if s.MatchLabels == nil {
		s.MatchLabels = map[string]string{}
	}
	s.MatchLabels[key] = value
}
