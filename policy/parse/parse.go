// Package parse makes rules of policy objects: NetworkPolicy,
// ClusterNetworkPolicy, CiliumNetworkPolicy and
// CiliumClusterwideNetworkPolicy, wherever they were read. What an object
// leaves out is filled in as its API has it; all that is wrong with one is said
// at once, by field.
package parse

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"myelin/cluster"
	"myelin/policy"
)

// Lines gives the line of a field in the file that an object was read from, by
// its path as in "spec.ingress[0]"; 0: not known. Nil knows none.
type Lines func(field string) int

// Error is all that is wrong with one object.
type Error struct {
	Ref policy.Ref
	// Fields is never empty.
	Fields cluster.FieldErrors
}

// Error is "Kind namespace/name field: reason", joined by "; ".
func (e *Error) Error() string {
	parts := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		parts[i] = e.Ref.String() + " " + f.Error()
	}
	return strings.Join(parts, "; ")
}

// Unwrap is Fields, for callers that say which object it is themselves.
func (e *Error) Unwrap() error { return e.Fields }

// reader reads one object.
type reader struct {
	ref    policy.Ref
	source string
	lines  Lines
	faults cluster.FieldErrors
}

func newReader(kind string, meta *metav1.ObjectMeta, namespaced bool, source string, lines Lines) *reader {
	r := &reader{source: source, lines: lines}
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
	if len(r.faults) == 0 {
		return nil
	}
	return &Error{Ref: r.ref, Fields: r.faults}
}

func (r *reader) add(field, format string, args ...any) {
	r.faults = append(r.faults, cluster.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)})
}

// notYet refuses what the API has and nothing here acts on.
func (r *reader) notYet(field string) {
	name := field[strings.LastIndexByte(field, '.')+1:]
	r.add(field, "%s is not there yet", name)
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

// prefix reads a CIDR. Bits after the prefix don't count, as in Kubernetes.
// With lone, an address alone will do.
func (r *reader) prefix(field, text string, lone bool) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	if err != nil && lone {
		var a netip.Addr
		if a, err = netip.ParseAddr(text); err == nil {
			p = netip.PrefixFrom(a, a.BitLen())
			if a.Zone() != "" {
				r.add(field, "%q has a zone", text)
				return p, false
			}
		}
	}
	switch {
	case err != nil && lone:
		r.add(field, "%q is not a CIDR or an address, such as 10.0.0.0/8, fd00::/8 or 10.0.0.1", text)
	case err != nil:
		r.add(field, "%q is not a CIDR such as 10.0.0.0/8 or fd00::/8", text)
	case p.Addr().Is4In6():
		r.add(field, "%q is an IPv4-mapped prefix: write it as IPv4", text)
	default:
		return p.Masked(), true
	}
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
