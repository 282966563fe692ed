package manifests

import (
	"maps"
	"path"
	"slices"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/parse"
)

// decoder reads an object of one kind.
type decoder func(p *parser, name string, k key, raw []byte)

// decoders are the kinds that have a table.
func decoders() map[string]decoder {
	all := map[string]decoder{
		"v1/Node":                            rowOf(cluster.FromNode),
		"v1/Namespace":                       rowOf(cluster.FromNamespace),
		"v1/Pod":                             rowOf(cluster.FromPod),
		"v1/Service":                         rowOf(cluster.FromService),
		"discovery.k8s.io/v1/EndpointSlice":  rowOf(cluster.FromEndpointSlice),
		"v1/Secret":                          rowOf(cluster.FromSecret),
		"cilium.io/v2/CiliumCIDRGroup":       group,
		"cilium.io/v2alpha1/CiliumCIDRGroup": group,
	}
	for kind, read := range parse.Readers() {
		all[kind] = policyOf(read)
	}
	return all
}

// policyKinds are those of policies.
func policyKinds() (kinds []string) {
	for kind := range maps.Keys(parse.Readers()) {
		kinds = append(kinds, path.Base(kind))
	}
	return slices.Sorted(slices.Values(kinds))
}

func rowOf[T, R any](convert func(*T, string) (*R, error)) decoder {
	return func(p *parser, name string, k key, raw []byte) {
		decode(p, name, k, func() (*R, cluster.FieldErrors) {
			return cluster.Read(raw, func(o *T) (*R, error) { return convert(o, sourceOf(p.rel)) })
		})
	}
}

func policyOf(read parse.Reader) decoder {
	return func(p *parser, name string, k key, raw []byte) {
		decode(p, name, k, func() (*policy.Object, cluster.FieldErrors) { return read(raw, p.origin()) })
	}
}

func group(p *parser, name string, k key, raw []byte) {
	decode(p, name, k, func() (*policy.Group, cluster.FieldErrors) { return parse.ReadGroup(raw, p.origin()) })
}

// origin is what rows of the object say of where it stands.
func (p *parser) origin() parse.Origin {
	return parse.Origin{Source: sourceOf(p.rel), Lines: parse.YAMLLines(p.part.text, p.part.line, p.under), Now: p.now}
}
