package serviceapi

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"myelin/cluster"
	"myelin/service"
)

// checker collects the problems of a Service, by the names that fields have in the API.
type checker struct{ errs cluster.FieldErrors }

func (c *checker) add(field, format string, args ...any) {
	c.errs = append(c.errs, cluster.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)})
}

func (c *checker) err() error {
	if len(c.errs) == 0 {
		return nil
	}
	return c.errs
}

// check returns all problems of a Service as cluster.FieldErrors.
func check(s *Service) error {
	var c checker
	for _, reason := range validation.IsDNS1123Label(s.Name) {
		c.add("name", "%q: %s", s.Name, reason)
	}
	c.frontends(s)
	c.backends(s)
	if s.Affinity < 0 || s.Affinity > maxAffinity || s.Affinity%time.Second != 0 {
		c.add("affinity_seconds", "%s is not in 1s..%s, or 0 for none", s.Affinity, maxAffinity)
	}
	if !slices.Contains([]service.Algorithm{"", service.Random, service.Maglev, service.LeastConnections},
		s.Algorithm) {
		c.add("algorithm", "%q is none of random, maglev, least-conn", s.Algorithm)
	}
	if !slices.Contains([]service.Forwarding{"", service.SNAT, service.DSR, service.Hybrid}, s.Forwarding) {
		c.add("mode", "%q is none of snat, dsr, hybrid", s.Forwarding)
	}
	c.ranges(s)
	c.serverIDs(s)
	if s.Check != nil {
		s.Check.Validate(func(field, reason string) { c.add("health_check."+field, "%s", reason) })
	}
	return c.err()
}

func (c *checker) frontends(s *Service) {
	if n := len(s.Frontends); n < 1 || n > maxFrontends {
		c.add("frontends", "%d are not in 1..%d", n, maxFrontends)
		return
	}
	first := s.Frontends[0]
	for i, f := range s.Frontends {
		at := fmt.Sprintf("frontends[%d]", i)
		c.address(at, f.AddrPort)
		switch {
		case f.Port() != first.Port() || f.Protocol != first.Protocol:
			c.add(at, "%s: a Service has one port and protocol, and frontends[0] has %d/%s", f, first.Port(),
				first.Protocol)
		case slices.Contains(s.Frontends[:i], f):
			c.add(at, "%s is there twice", f)
		}
	}
}

func (c *checker) backends(s *Service) {
	if n := len(s.Backends); n > maxBackends {
		c.add("backends", "%d are too many: at most %d", n, maxBackends)
		return
	}
	seen := make(map[netip.AddrPort]bool, len(s.Backends))
	for i, b := range s.Backends {
		at := fmt.Sprintf("backends[%d].address", i)
		c.address(at, b.Address)
		if seen[b.Address] {
			c.add(at, "%s is there twice", b.Address)
		}
		seen[b.Address] = true
		if slices.ContainsFunc(s.Frontends, func(f service.L4Addr) bool { return f.AddrPort == b.Address }) {
			c.add(at, "%s is a frontend of this Service", b.Address)
		}
	}
}

// address requires an address that packets between machines can have.
func (c *checker) address(field string, a netip.AddrPort) {
	if !a.IsValid() || a.Port() == 0 {
		c.add(field, "must be an address and a port")
	} else if reason := cluster.Unusable(a.Addr()); reason != "" {
		c.add(field, "%s %s", a.Addr(), reason)
	}
}

// serverIDs requires UDP, and different server IDs for all backends of a family.
func (c *checker) serverIDs(s *Service) {
	if s.ServerIDLength == 0 {
		for i, b := range s.Backends {
			if b.ServerID != "" {
				c.add(fmt.Sprintf("backends[%d].server_id", i), "means nothing without quic_server_id_length")
			}
		}
		return
	}
	if s.ServerIDLength > service.MaxServerID {
		c.add("quic_server_id_length", "%d is not in 1..%d, or 0 for none", s.ServerIDLength, service.MaxServerID)
		return
	}
	if len(s.Frontends) > 0 && s.protocol() != service.UDP {
		c.add("quic_server_id_length", "is for UDP, and the frontends are %s", s.protocol())
	}
	c.serverIDsDiffer(s)
}

func (c *checker) serverIDsDiffer(s *Service) {
	type key struct {
		id uint64
		v6 bool
	}
	seen := map[key]netip.AddrPort{}
	for i, b := range s.Backends {
		at := fmt.Sprintf("backends[%d].server_id", i)
		id, err := service.ServerID(b.ServerID, b.Address.Addr(), s.ServerIDLength)
		if err != nil {
			c.add(at, "%v", err)
			continue
		}
		k := key{id, b.Address.Addr().Is6()}
		if other, taken := seen[k]; taken {
			c.add(at, "%0*x is that of %s too", 2*int(s.ServerIDLength), id, other)
		}
		seen[k] = b.Address
	}
}

func (c *checker) ranges(s *Service) {
	if n := len(s.SourceRanges); n > maxRanges {
		c.add("source_ranges", "%d are too many: at most %d", n, maxRanges)
	}
	for i, r := range s.SourceRanges {
		at := fmt.Sprintf("source_ranges[%d]", i)
		switch {
		case !r.IsValid() || r.Addr().Is4In6():
			c.add(at, "must be a CIDR such as 192.0.2.0/24 or 2001:db8::/32")
		case r != r.Masked():
			c.add(at, "%s has bits set after the prefix: did you mean %s?", r, r.Masked())
		}
	}
	if s.SourceDeny && len(s.SourceRanges) == 0 {
		c.add("source_deny", "means nothing without source_ranges")
	}
}
