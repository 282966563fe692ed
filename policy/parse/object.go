package parse

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/ciliumv2"
)

// GroupKind is the kind of groups.
const GroupKind = "CiliumCIDRGroup"

// Reader makes a row of a policy's JSON, strictly. What is wrong is told as
// cluster.FieldErrors, without the object; then the row, which is of policy.Closed,
// has what is understood of the object, and is for where there is no version that
// was good. It is nil where the text doesn't say which object it is.
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
		"networking.k8s.io/v1/NetworkPolicy": readerOf("NetworkPolicy",
			func(r *reader, o *networkPolicy) []policy.Spec {
				return r.networkPolicy(&o.NetworkPolicy)
			}),
		"policy.networking.k8s.io/v1alpha2/ClusterNetworkPolicy": readerOf("ClusterNetworkPolicy",
			(*reader).clusterNetworkPolicy),
		"cilium.io/v2/CiliumNetworkPolicy": readerOf("CiliumNetworkPolicy", func(r *reader,
			o *ciliumv2.CiliumNetworkPolicy) []policy.Spec {
			return r.ciliumSpecs(o.Spec, o.Specs)
		}),
		"cilium.io/v2/CiliumClusterwideNetworkPolicy": readerOf("CiliumClusterwideNetworkPolicy", func(r *reader,
			o *ciliumv2.CiliumClusterwideNetworkPolicy) []policy.Spec {
			return r.ciliumSpecs(o.Spec, o.Specs)
		}),
	}
}

// isNamespaced reports whether policies of a kind are in a namespace.
func isNamespaced(kind string) bool {
	return slices.Contains([]string{"NetworkPolicy", "CiliumNetworkPolicy"}, kind)
}

// networkPolicy is one as API servers before 1.27 wrote it, with a status.
type networkPolicy struct {
	networkingv1.NetworkPolicy `json:",inline"`

	Status json.RawMessage `json:"status,omitempty"`
}

func readerOf[T any](kind string, convert func(*reader, *T) []policy.Spec) Reader {
	return func(raw []byte, of Origin) (*policy.Object, cluster.FieldErrors) {
		object, faults, lost := decode[T](raw)
		meta, ok := any(&object).(interface{ GetObjectMeta() metav1.Object })
		if !ok {
			panic("a policy without metadata")
		}
		m, ok := meta.GetObjectMeta().(*metav1.ObjectMeta)
		if ok && m.Name == "" && len(lost) > 0 {
			nameOf(raw, m)
		}
		r := newReader(kind, m, isNamespaced(kind), of.Source, of.Lines)
		r.lost = lost
		for _, f := range faults {
			r.found = append(r.found, finding{f, !mayBeNewer(kind, f)})
		}
		specs := convert(r, &object)
		row := &policy.Object{Ref: r.ref, Labels: m.Labels, Source: of.Source, Specs: specs, Since: of.Now}
		wrong := r.faults()
		switch {
		case len(wrong) == 0:
			return row, nil
		case m.Name == "":
			return nil, wrong
		}
		row.InForce, row.Problem = policy.Closed, Problem(wrong)
		return row, wrong
	}
}

// nameOf reads an object's name where nothing else of it could be read.
func nameOf(raw []byte, m *metav1.ObjectMeta) {
	var head struct {
		Metadata struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
	}
	if json.Unmarshal(raw, &head) == nil {
		m.Name, m.Namespace = head.Metadata.Name, head.Metadata.Namespace
	}
}

// mayBeNewer reports whether a fault is a field that a peer of a
// ClusterNetworkPolicy may have in a newer version of the API, which demands that
// such rules fail closed.
func mayBeNewer(kind string, f cluster.FieldError) bool {
	peer := regexp.MustCompile(`^spec\.(ingress\[\d+\]\.from|egress\[\d+\]\.to)\[\d+\]\.`)
	return kind == "ClusterNetworkPolicy" && f.Reason == "unknown field" && peer.MatchString(f.Field)
}

// Problem is all that is wrong with an object as one text, as rows have it.
func Problem(faults cluster.FieldErrors) string {
	var reasons []string
	for _, f := range faults {
		if reason := strings.TrimPrefix(f.Error(), ": "); !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	return strings.Join(reasons, "; ")
}

// ReadGroup makes a row of a CiliumCIDRGroup's JSON, as a Reader does.
func ReadGroup(raw []byte, of Origin) (*policy.Group, cluster.FieldErrors) {
	object, faults, lost := decode[ciliumv2.CiliumCIDRGroup](raw)
	if object.Name == "" && len(lost) > 0 {
		nameOf(raw, &object.ObjectMeta)
	}
	row, err := CIDRGroup(&object, of.Source)
	if row.Since = of.Now; err != nil {
		faults = append(faults, cluster.Faults(err)...)
	}
	switch {
	case len(faults) == 0:
		return row, nil
	case row.Name == "":
		return nil, faults
	}
	row.InForce, row.Problem = policy.Closed, Problem(faults)
	return row, faults
}
