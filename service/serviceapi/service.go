// Package serviceapi has the Services that are programmed by API, without Kubernetes. It stores them in files, checks
// the health of their backends, and writes them as rows of the cluster's tables, from which they are served like all
// others.
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
	"myelin/service/serviceapi/probe"
)

// Service is what is programmed under a name. Rows are immutable.
type Service struct {
	// Name is a DNS label. The Service has no namespace, so that no Kubernetes object has the same key.
	Name string `json:"name"`
	// Created is when the name was first programmed.
	Created time.Time `json:"created"`
	// Frontends are 1..64, all with the same port and protocol.
	Frontends []service.L4Addr `json:"frontends"`
	// Backends have the protocol of the frontends. There are at most 10,000, each once.
	Backends []Backend `json:"backends,omitempty"`
	// Affinity is how long a client stays with its backend: 1 s to 1 day in whole seconds, or 0 for no affinity.
	Affinity   time.Duration      `json:"affinity,omitempty"`
	Algorithm  service.Algorithm  `json:"algorithm,omitempty"`
	Forwarding service.Forwarding `json:"mode,omitempty"`
	// ServerIDLength is the length of server IDs in QUIC connection IDs, 1..8 octets, by which backends are selected;
	// 0: they are not. Only for UDP.
	ServerIDLength uint8 `json:"quicServerIDLength,omitempty"`
	// SourceRanges are the external clients that are allowed, or denied with SourceDeny. Without ranges all are
	// allowed. At most 1,000.
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	SourceDeny   bool           `json:"sourceDeny,omitempty"`
	// Check is the health check of each backend; nil for none.
	Check *probe.Check `json:"healthCheck,omitempty"`
}

// Backend is one address that flows are sent to.
type Backend struct {
	Address netip.AddrPort `json:"address"`
	// Weight is relative to the others'. 0 means maintenance, in this Service.
	Weight uint16 `json:"weight"`
	// ServerID names the backend in QUIC connection IDs: as many octets as the Service says, in hexadecimal digits;
	// empty: the last ones of its address.
	ServerID string `json:"serverID,omitempty"`
}

// Bounds of a Service.
const (
	maxFrontends = 64
	maxBackends  = 10000
	maxRanges    = 1000
	maxAffinity  = 24 * time.Hour
)

// key is the Service's key in the tables of the cluster.
func (s *Service) key() cluster.Key { return cluster.Key{Name: s.Name} }

// protocol is that of all frontends and of the backends.
func (s *Service) protocol() service.Protocol { return s.Frontends[0].Protocol }

// backend is the index of an address in the backends, or -1.
func (s *Service) backend(a netip.AddrPort) int {
	return slices.IndexFunc(s.Backends, func(b Backend) bool { return b.Address == a })
}

// equal compares everything but the time.
func (s *Service) equal(o *Service) bool {
	return s.Name == o.Name && slices.Equal(s.Frontends, o.Frontends) && slices.Equal(s.Backends, o.Backends) &&
		s.Affinity == o.Affinity &&
		s.Algorithm == o.Algorithm && s.Forwarding == o.Forwarding && slices.Equal(s.SourceRanges, o.SourceRanges) &&
		s.SourceDeny == o.SourceDeny && s.ServerIDLength == o.ServerIDLength &&
		(s.Check == nil) == (o.Check == nil) && (s.Check == nil || *s.Check == *o.Check)
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
	created := s.Created.UTC().Format(time.RFC3339)
	return []string{s.Name, strings.Join(frontends, " "), strconv.Itoa(len(s.Backends)), check, created}
}

// Probe is the result of the health check of a backend for one Service. Rows are immutable. They change with the state
// or the error, not with each result.
type Probe struct {
	Service string         `json:"service"`
	Backend service.L4Addr `json:"backend"`
	Check   string         `json:"check"`
	Health  Health         `json:"health"`
	// Via is how the packets of the last check travelled: "direct", or how DSR reaches the backend, such as "IPIP".
	// Empty before the first result.
	Via probe.Via `json:"via,omitempty"`
	// Error is that of the last check. A backend may be passing and have an error.
	Error string `json:"error,omitempty"`
	// Since is the time of the last change of Health.
	Since time.Time `json:"since"`
}

// Health is the state of a backend by its health check.
type Health string

// The states. Unknown, before the first result, counts as healthy.
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

// Described is Text with the way of the packets, if that is not direct. An error by DSR has it.
func (p *Probe) Described() string {
	if p.Error == "" && p.Via != "" && p.Via != probe.Direct {
		return p.Text() + " by " + string(p.Via)
	}
	return p.Text()
}

// TableHeader names the columns of TableRow.
func (*Probe) TableHeader() []string {
	return []string{"Service", "Backend", "Check", "Via", "Health", "Error", "Since"}
}

// TableRow is the row as text.
func (p *Probe) TableRow() []string {
	return []string{p.Service, p.Backend.String(), p.Check, string(p.Via), string(p.Health), p.Error,
		p.Since.UTC().Format(time.RFC3339)}
}

// probeKey identifies a health check.
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

// ProbesByBackend finds the results of all Services for a backend.
func ProbesByBackend(a service.L4Addr) statedb.Query[*Probe] { return probeBackends().Query(a) }

// byName finds the Service of that name.
func byName(name string) statedb.Query[*Service] { return serviceNames().Query(name) }
