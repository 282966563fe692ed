package manifests

import (
	"encoding/json"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/ciliumv2"
	"myelin/policy/parse"
)

// decoder reads an object of one kind.
type decoder func(p *parser, name string, k key, raw []byte)

// decoders are the kinds that have a table.
func decoders() map[string]decoder {
	return map[string]decoder{
		"v1/Node":                           rowOf(cluster.FromNode),
		"v1/Namespace":                      rowOf(cluster.FromNamespace),
		"v1/Pod":                            rowOf(cluster.FromPod),
		"v1/Service":                        rowOf(cluster.FromService),
		"discovery.k8s.io/v1/EndpointSlice": rowOf(cluster.FromEndpointSlice),
		"networking.k8s.io/v1/NetworkPolicy": policyOf(func(o *networkPolicy, source string, lines parse.Lines) ([]policy.Spec, error) {
			return parse.NetworkPolicy(&o.NetworkPolicy, source, lines)
		}),
		"policy.networking.k8s.io/v1alpha2/ClusterNetworkPolicy": policyOf[v1alpha2.ClusterNetworkPolicy](parse.ClusterNetworkPolicy),
		"cilium.io/v2/CiliumNetworkPolicy":                       policyOf[ciliumv2.CiliumNetworkPolicy](parse.CiliumNetworkPolicy),
		"cilium.io/v2/CiliumClusterwideNetworkPolicy":            policyOf[ciliumv2.CiliumClusterwideNetworkPolicy](parse.CiliumClusterwideNetworkPolicy),
		"cilium.io/v2/CiliumCIDRGroup":                           group,
		"cilium.io/v2alpha1/CiliumCIDRGroup":                     group,
	}
}

// groupKind is the kind of groups, policyKinds are those of policies.
const groupKind = "CiliumCIDRGroup"

func policyKinds() []string {
	return []string{"NetworkPolicy", "ClusterNetworkPolicy", "CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy"}
}

// networkPolicy is one as API servers before 1.27 wrote it, with a status.
type networkPolicy struct {
	networkingv1.NetworkPolicy `json:",inline"`

	Status json.RawMessage `json:"status,omitempty"`
}

func rowOf[T, R any](convert func(*T, string) (*R, error)) decoder {
	return func(p *parser, name string, k key, raw []byte) { decode(p, name, k, raw, convert) }
}

func policyOf[T any](convert func(*T, string, parse.Lines) ([]policy.Spec, error)) decoder {
	return func(p *parser, name string, k key, raw []byte) {
		decode(p, name, k, raw, func(o *T, source string) (*policy.Object, error) {
			specs, err := convert(o, source, parse.YAMLLines(p.part.text, p.part.line, p.under))
			if err != nil {
				return nil, err
			}
			row := &policy.Object{Ref: policy.Ref{Kind: k.kind, Key: cluster.Key{Namespace: k.namespace, Name: k.name}}, Source: source, Specs: specs, Since: p.now}
			if meta, ok := any(o).(metav1.Object); ok {
				row.Labels = meta.GetLabels()
			}
			return row, nil
		})
	}
}

func group(p *parser, name string, k key, raw []byte) {
	decode(p, name, k, raw, func(o *ciliumv2.CiliumCIDRGroup, source string) (*policy.Group, error) {
		row, err := parse.CIDRGroup(o, source)
		row.Since = p.now
		return row, err
	})
}
