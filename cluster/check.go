package cluster

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// FieldError says what is wrong with one field of an object.
type FieldError struct {
	// Field is the path in the object, e.g. "spec.podCIDRs[0]".
	Field string `json:"field"`
	// Reason says what is wrong, with the value in it.
	Reason string `json:"reason"`
}

// Error is "field: reason".
func (e FieldError) Error() string { return e.Field + ": " + e.Reason }

// FieldErrors are all that is wrong with one object; never empty as an error.
type FieldErrors []FieldError

// Error joins all errors by "; ".
func (e FieldErrors) Error() string {
	parts := make([]string, len(e))
	for i, f := range e {
		parts[i] = f.Error()
	}
	return strings.Join(parts, "; ")
}

// checker collects the errors of one object, so that all are told at once.
type checker struct{ errs FieldErrors }

func (c *checker) err() error {
	if len(c.errs) == 0 {
		return nil
	}
	return c.errs
}

func (c *checker) add(field, format string, args ...any) {
	c.errs = append(c.errs, FieldError{Field: field, Reason: fmt.Sprintf(format, args...)})
}

func (c *checker) name(field, value string, valid func(string) []string) {
	if value == "" {
		c.add(field, "must be set")
		return
	}
	for _, reason := range valid(value) {
		c.add(field, "%q: %s", value, brief(reason))
	}
}

// brief leaves out the examples and the regular expression of a reason.
func brief(reason string) string {
	reason, _, _ = strings.Cut(reason, " (e.g.")
	return reason
}

func (c *checker) absent(field, value string) {
	if value != "" {
		c.add(field, "%q: this kind is in no namespace", value)
	}
}

func (c *checker) labels(labels map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		for _, reason := range validation.IsQualifiedName(k) {
			c.add("metadata.labels", "key %q: %s", k, brief(reason))
		}
		for _, reason := range validation.IsValidLabelValue(labels[k]) {
			c.add(fmt.Sprintf("metadata.labels[%s]", k), "%q: %s", labels[k], brief(reason))
		}
	}
}

func (c *checker) phase(p corev1.PodPhase) {
	switch p {
	case "", corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown:
	default:
		c.add("status.phase", "%q is none of Pending, Running, Succeeded, Failed, Unknown", p)
	}
}

// addr reads a unicast address that packets can carry between machines.
func (c *checker) addr(field, value string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(value)
	if err != nil {
		c.add(field, "%q is not an IP address", value)
		return netip.Addr{}, false
	}
	if reason := Unusable(a); reason != "" {
		c.add(field, "%s %s", a, reason)
		return netip.Addr{}, false
	}
	return a, true
}

// prefix reads a CIDR that pods can get addresses from: its host bits are
// zero, and it has room for a network address, a gateway and a pod.
func (c *checker) prefix(field, value string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(value)
	if err != nil {
		c.add(field, "%q is not a CIDR such as 10.0.1.0/24 or fd00:1::/64", value)
		return netip.Prefix{}, false
	}
	if reason := Unusable(p.Masked().Addr()); reason != "" {
		c.add(field, "%s %s", p, reason)
		return netip.Prefix{}, false
	}
	if p != p.Masked() {
		c.add(field, "%s has bits set after the prefix: did you mean %s?", p, p.Masked())
		return netip.Prefix{}, false
	}
	if free := p.Addr().BitLen() - p.Bits(); free < 2 {
		c.add(field, "%s is too small: at most /%d", p, p.Addr().BitLen()-2)
		return netip.Prefix{}, false
	}
	if p.Bits() == 0 {
		c.add(field, "%s holds every address", p)
		return netip.Prefix{}, false
	}
	return p, true
}

// Unusable says why an address is none that packets can carry between machines;
// empty if it is one.
func Unusable(a netip.Addr) string {
	switch {
	case a.Zone() != "":
		return "has a zone"
	case a.Is4In6():
		return fmt.Sprintf("is an IPv4-mapped address: write %s", a.Unmap())
	case a.IsUnspecified():
		return "is the unspecified address"
	case a.IsLoopback():
		return "is a loopback address"
	case a.IsMulticast():
		return "is a multicast address"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "is the broadcast address"
	}
	return ""
}

// path makes a field path of names and list places: path("a", 1, "b") is
// "a[1].b".
func path(parts ...any) string {
	var b strings.Builder
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", p)
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			fmt.Fprint(&b, p)
		}
	}
	return b.String()
}
