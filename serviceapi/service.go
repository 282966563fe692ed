// Package gateway holds the Services that are programmed by API, without
// Kubernetes: it keeps them in files, checks the health of their backends, and
// writes them as rows of the cluster's tables, so that they are served as all
// others are.
package serviceapi

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"myelin/cluster"
	"myelin/service"
	"myelin/serviceapi/probe"
)

// Service is what is programmed under a name. Rows are immutable.
type Service struct {
	// Name is a DNS label; the Service is in no namespace, so that no object of
	// Kubernetes has the same key.
	Name string `json:"name"`
	// Created is when the name was first programmed.
	Created time.Time `json:"created"`
	// Frontends are 1..64, all with the same port and protocol.
	Frontends []service.L4Addr `json:"frontends"`
	// Backends speak the protocol of the frontends; at most 10,000, each once.
	Backends []Backend `json:"backends,omitempty"`
	// Affinity is how long a client stays with its backend: 1 s..1 day in whole
	// seconds; 0: not at all.
	Affinity   time.Duration      `json:"affinity,omitempty"`
	Algorithm  service.Algorithm  `json:"algorithm,omitempty"`
	Forwarding service.Forwarding `json:"mode,omitempty"`
	// SourceRanges are who may come from outside, or with SourceDeny who may not;
	// none: everybody may. At most 1,000.
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	SourceDeny   bool           `json:"sourceDeny,omitempty"`
	// Check is asked of each backend; nil: none is asked.
	Check *probe.Check `json:"healthCheck,omitempty"`
}

// Backend is one address that flows are sent to.
type Backend struct {
	Address netip.AddrPort `json:"address"`
	// Weight is relative to the others'; 0 means maintenance, for this Service.
	Weight uint16 `json:"weight"`
}

// Bounds of a Service.
const (
	maxFrontends = 64
	maxBackends  = 10000
	maxRanges    = 1000
	maxAffinity  = 24 * time.Hour
)

// Key is the Service's key in the tables of the cluster.
func (s *Service) Key() cluster.Key { return cluster.Key{Name: s.Name} }

// protocol is that of all frontends, and of the backends.
func (s *Service) protocol() service.Protocol { return s.Frontends[0].Protocol }

// backend is the place of an address among the backends, or -1.
func (s *Service) backend(a netip.AddrPort) int {
	return slices.IndexFunc(s.Backends, func(b Backend) bool { return b.Address == a })
}

// equal compares all but the time.
func (s *Service) equal(o *Service) bool {
	return s.Name == o.Name && slices.Equal(s.Frontends, o.Frontends) && slices.Equal(s.Backends, o.Backends) && s.Affinity == o.Affinity &&
		s.Algorithm == o.Algorithm && s.Forwarding == o.Forwarding && slices.Equal(s.SourceRanges, o.SourceRanges) &&
		s.SourceDeny == o.SourceDeny && (s.Check == nil) == (o.Check == nil) && (s.Check == nil || *s.Check == *o.Check)
}

// TableHeader names the columns of TableRow.
func (*Service) TableHeader() []string {
	return []string{"Name", "Frontends", "Backends", "Health check", "Created"}
}

// TableRow is the row as text.
func (s *Service) TableRow() []string {
	frontends, check := make([]string, len(s.Frontends)), ""
	for i, f := range s.Frontends {
		frontends[i] = f.String()
	}
	if s.Check != nil {
		check = s.Check.String()
	}
	return []string{s.Name, strings.Join(frontends, " "), strconv.Itoa(len(s.Backends)), check, s.Created.UTC().Format(time.RFC3339)}
}

// Probe is what the health check of a Service says of one backend. Rows are
// immutable, and change with the state or the error, not with each answer.
type Probe struct {
	Service string         `json:"service"`
	Backend service.L4Addr `json:"backend"`
	Check   string         `json:"check"`
	Health  Health         `json:"health"`
	// Error is that of the last answer; a backend may pass and have one.
	Error string `json:"error,omitempty"`
	// Since is when Health changed last.
	Since time.Time `json:"since"`
}

// Health is what is known of a backend.
type Health string

// The states. Unknown counts as good: nobody has answered yet.
const (
	Unknown Health = "unknown"
	Passing Health = "passing"
	Failing Health = "failing"
)

// Text is the state with its error.
func (p *Probe) Text() string {
	if p.Error == "" {
		return string(p.Health)
	}
	return string(p.Health) + ": " + p.Error
}

// TableHeader names the columns of TableRow.
func (*Probe) TableHeader() []string {
	return []string{"Service", "Backend", "Check", "Health", "Error", "Since"}
}

// TableRow is the row as text.
func (p *Probe) TableRow() []string {
	return []string{p.Service, p.Backend.String(), p.Check, string(p.Health), p.Error, p.Since.UTC().Format(time.RFC3339)}
}

// probeKey is what a health check is of.
type probeKey struct {
	service string
	backend service.L4Addr
}

func (k probeKey) String() string { return k.service + " " + k.backend.String() }

func (p *Probe) key() probeKey { return probeKey{p.Service, p.Backend} }

// The indexes are functions, not variables, so that the package has no state.

func serviceNames() statedb.Index[*Service, string] {
	return statedb.Index[*Service, string]{
		Name:       "name",
		FromObject: func(s *Service) index.KeySet { return index.NewKeySet(index.String(s.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}
}

func probeKeys() statedb.Index[*Probe, probeKey] {
	return statedb.Index[*Probe, probeKey]{
		Name:       "key",
		FromObject: func(p *Probe) index.KeySet { return index.NewKeySet(index.Stringer(p.key())) },
		FromKey:    index.Stringer[probeKey],
		FromString: index.FromString,
		Unique:     true,
	}
}

func probeBackends() statedb.Index[*Probe, service.L4Addr] {
	return statedb.Index[*Probe, service.L4Addr]{
		Name:       "backend",
		FromObject: func(p *Probe) index.KeySet { return index.NewKeySet(index.Stringer(p.Backend)) },
		FromKey:    index.Stringer[service.L4Addr],
		FromString: index.FromString,
	}
}

// ProbesByBackend finds what the checks of all Services say of a backend.
func ProbesByBackend(a service.L4Addr) statedb.Query[*Probe] { return probeBackends().Query(a) }

// byName finds the Service of that name.
func byName(name string) statedb.Query[*Service] { return serviceNames().Query(name) }
