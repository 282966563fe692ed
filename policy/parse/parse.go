// Package parse makes rules of policy objects: NetworkPolicy,
// ClusterNetworkPolicy, CiliumNetworkPolicy and
// CiliumClusterwideNetworkPolicy, wherever they were read. What an object
// leaves out is filled in as its API has it; all that is wrong with one is said
// at once, by field. Rules fail closed: a part that is not understood, or that
// Myelin cannot enforce, allows nothing and denies all that it could mean.
package parse

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	utilnet "k8s.io/utils/net"

	"myelin/cluster"
	"myelin/policy"
)

// Lines gives the line of a field in the file that an object was read from, by
// its path as in "spec.ingress[0]"; 0: not known. Nil knows none.
type Lines func(field string) int

// objectError is all that is wrong with one object.
type objectError struct {
	Ref policy.Ref
	// Fields is never empty.
	Fields cluster.FieldErrors
}

// Error is "Kind namespace/name field: reason", joined by "; ".
func (e *objectError) Error() string {
	parts := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		parts[i] = e.Ref.String() + " " + f.Error()
	}
	return strings.Join(parts, "; ")
}

// Unwrap is Fields, for callers that say which object it is themselves.
func (e *objectError) Unwrap() error { return e.Fields }

// reader reads one object.
type reader struct {
	ref    policy.Ref
	source string
	lines  Lines
	// namespaced: objects of the kind are in a namespace.
	namespaced bool
	// found is what is wrong with the object and what cannot be enforced of it.
	found []finding
	// lost are fields that could not be decoded: the object has nothing there.
	lost []string
}

// finding is something that is wrong with a field, or, where wrong is false,
// something that the API allows and Myelin does not enforce.
type finding struct {
	cluster.FieldError

	wrong bool
}

func newReader(kind string, meta *metav1.ObjectMeta, namespaced bool, source string, lines Lines) *reader {
	r := &reader{source: source, lines: lines, namespaced: namespaced}
	r.ref = policy.Ref{Kind: kind, Key: cluster.Key{Namespace: meta.Namespace, Name: meta.Name}}
	if namespaced {
		if meta.Namespace == "" {
			r.ref.Namespace = metav1.NamespaceDefault
		}
		r.name("metadata.namespace", r.ref.Namespace, validation.IsDNS1123Label)
	} else if meta.Namespace != "" {
		r.add("metadata.namespace", "%q: this kind is in no namespace", meta.Namespace)
	}
	r.name("metadata.name", meta.Name, validation.IsDNS1123Subdomain)
	for _, k := range slices.Sorted(maps.Keys(meta.Labels)) {
		r.label("metadata.labels", k, meta.Labels[k])
	}
	return r
}

// err is nil where nothing is wrong.
func (r *reader) err() error {
	if faults := r.faults(); len(faults) > 0 {
		return &objectError{Ref: r.ref, Fields: faults}
	}
	return nil
}

// faults are all that is wrong.
func (r *reader) faults() (out cluster.FieldErrors) {
	for _, f := range r.found {
		if f.wrong {
			out = append(out, f.FieldError)
		}
	}
	return out
}

func (r *reader) add(field, format string, args ...any) {
	r.found = append(r.found, finding{cluster.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}, true})
}

// unenforced notes what the API has and Myelin does not enforce.
func (r *reader) unenforced(field, format string, args ...any) {
	r.found = append(r.found, finding{cluster.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}, false})
}

// notSupported notes a field that nothing here acts on.
func (r *reader) notSupported(field string) {
	r.unenforced(field, "%s is not supported", field[strings.LastIndexByte(field, '.')+1:])
}

func (r *reader) origin(path string) policy.Origin {
	o := policy.Origin{Ref: r.ref, Path: path, Source: r.source}
	if r.lines != nil {
		o.Line = r.lines(path)
	}
	return o
}

func (r *reader) name(field, value string, valid func(string) []string) {
	if value == "" {
		r.add(field, "must be set")
		return
	}
	r.valid(field, value, valid)
}

func (r *reader) valid(field, value string, valid func(string) []string) {
	for _, reason := range valid(value) {
		// What follows are examples and a regular expression.
		reason, _, _ := strings.Cut(reason, " (e.g.")
		r.add(field, "%q: %s", value, reason)
	}
}

func (r *reader) label(field, key, value string) {
	for _, reason := range validation.IsQualifiedName(key) {
		reason, _, _ := strings.Cut(reason, " (e.g.")
		r.add(field, "key %q: %s", key, reason)
	}
	r.valid(field+"["+key+"]", value, validation.IsValidLabelValue)
}

// prefix reads a CIDR as Kubernetes does (k8s.io/utils/net.ParseCIDRSloppy, which
// the validation of NetworkPolicy uses): numbers with leading zeros are decimal, an
// IPv4-mapped prefix means the IPv4 one, and bits behind the prefix don't count.
// With lone, an address alone will do.
func (r *reader) prefix(field, text string, lone bool) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(text); err == nil && !p.Addr().Is4In6() {
		return p.Masked(), true // nearly all, and lists are long
	}
	if _, network, err := utilnet.ParseCIDRSloppy(text); err == nil {
		// String makes an IPv4 prefix of an IPv4-mapped one.
		if p, err := netip.ParsePrefix(network.String()); err == nil {
			return p.Masked(), true
		}
	}
	if !lone {
		r.add(field, "%q is not a CIDR such as 10.0.0.0/8 or fd00::/8", text)
		return netip.Prefix{}, false
	}
	if a, ok := netip.AddrFromSlice(utilnet.ParseIPSloppy(text)); ok {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	r.add(field, "%q is not a CIDR or an address, such as 10.0.0.0/8, fd00::/8 or 10.0.0.1", text)
	return netip.Prefix{}, false
}

// within reports whether inner is part of outer, and not all of it if strict.
func within(inner, outer netip.Prefix, strict bool) bool {
	if !outer.Contains(inner.Addr()) {
		return false
	}
	return inner.Bits() > outer.Bits() || !strict && inner.Bits() == outer.Bits()
}

// item is the path of a list's item.
func item(at, list string, i int) string { return fmt.Sprintf("%s.%s[%d]", at, list, i) }
