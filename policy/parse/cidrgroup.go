package parse

import (
	"fmt"

	"myelin/policy"
	"myelin/policy/ciliumv2"
)

// CIDRGroup reads a CiliumCIDRGroup. An error says all that is wrong with it.
func CIDRGroup(o *ciliumv2.CiliumCIDRGroup, source string) (*policy.Group, error) {
	r := newReader("CiliumCIDRGroup", &o.ObjectMeta, false, source, nil)
	out := &policy.Group{Name: o.Name, Labels: o.Labels, Source: source}
	for i, text := range o.Spec.ExternalCIDRs {
		if p, ok := r.prefix(fmt.Sprintf("spec.externalCIDRs[%d]", i), text, true); ok {
			out.Prefixes = append(out.Prefixes, p)
		}
	}
	out.Prefixes = policy.SortLong(out.Prefixes)
	return out, r.err()
}
