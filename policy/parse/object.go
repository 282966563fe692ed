package parse

import (
	"encoding/json"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/ciliumv2"
)

// GroupKind is the kind of groups.
const GroupKind = "CiliumCIDRGroup"

// Reader makes a row of a policy's JSON, strictly. What is wrong is told as
// cluster.FieldErrors, without the object.
type Reader func(raw []byte, of Origin) (*policy.Object, cluster.FieldErrors)

// Origin is where an object comes from.
type Origin struct {
	Source string // as rows have it, e.g. "manifests:policies.yaml"
	Lines  Lines  // may be nil
	Now    time.Time
}

// Readers are those of the kinds of policies, by "apiVersion/Kind".
func Readers() map[string]Reader {
	return map[string]Reader{
		"networking.k8s.io/v1/NetworkPolicy": readerOf("NetworkPolicy", func(o *networkPolicy, source string, lines Lines) ([]policy.Spec, error) {
			return NetworkPolicy(&o.NetworkPolicy, source, lines)
		}),
		"policy.networking.k8s.io/v1alpha2/ClusterNetworkPolicy": readerOf[v1alpha2.ClusterNetworkPolicy]("ClusterNetworkPolicy", ClusterNetworkPolicy),
		"cilium.io/v2/CiliumNetworkPolicy":                       readerOf[ciliumv2.CiliumNetworkPolicy]("CiliumNetworkPolicy", CiliumNetworkPolicy),
		"cilium.io/v2/CiliumClusterwideNetworkPolicy":            readerOf[ciliumv2.CiliumClusterwideNetworkPolicy]("CiliumClusterwideNetworkPolicy", CiliumClusterwideNetworkPolicy),
	}
}

// IsNamespaced reports whether policies of a kind are in a namespace.
func IsNamespaced(kind string) bool {
	return slices.Contains([]string{"NetworkPolicy", "CiliumNetworkPolicy"}, kind)
}

// networkPolicy is one as API servers before 1.27 wrote it, with a status.
type networkPolicy struct {
	networkingv1.NetworkPolicy `json:",inline"`

	Status json.RawMessage `json:"status,omitempty"`
}

func readerOf[T any](kind string, convert func(*T, string, Lines) ([]policy.Spec, error)) Reader {
	return func(raw []byte, of Origin) (*policy.Object, cluster.FieldErrors) {
		return cluster.Read(raw, func(o *T) (*policy.Object, error) {
			specs, err := convert(o, of.Source, of.Lines)
			if err != nil {
				return nil, err
			}
			row := &policy.Object{Ref: policy.Ref{Kind: kind}, Source: of.Source, Specs: specs, Since: of.Now}
			if meta, ok := any(o).(metav1.Object); ok {
				row.Labels = meta.GetLabels()
				row.Ref.Key = cluster.Key{Namespace: meta.GetNamespace(), Name: meta.GetName()}
			}
			if row.Ref.Namespace == "" && IsNamespaced(kind) {
				row.Ref.Namespace = metav1.NamespaceDefault
			}
			return row, nil
		})
	}
}

// ReadGroup makes a row of a CiliumCIDRGroup's JSON, as a Reader does.
func ReadGroup(raw []byte, of Origin) (*policy.Group, cluster.FieldErrors) {
	return cluster.Read(raw, func(o *ciliumv2.CiliumCIDRGroup) (*policy.Group, error) {
		row, err := CIDRGroup(o, of.Source)
		row.Since = of.Now
		return row, err
	})
}
