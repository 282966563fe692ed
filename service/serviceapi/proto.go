package serviceapi

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	apiv1 "myelin/api/v1"
	"myelin/service"
	"myelin/service/serviceapi/probe"
)

// fromProto reads a request. Fields that cannot be parsed are cluster.FieldErrors; the others are not validated yet.
func fromProto(p *apiv1.Service) (*Service, error) {
	var c checker
	s := &Service{
		Name: p.GetName(), Affinity: time.Duration(p.GetAffinitySeconds()) * time.Second,
		Algorithm: service.Algorithm(p.GetAlgorithm()), Forwarding: service.Forwarding(p.GetMode()),
		SourceDeny: p.GetSourceDeny(), ServerIDLength: uint8(min(p.GetQuicServerIdLength(), math.MaxUint8)),
	}
	for i, text := range p.GetFrontends() {
		f, err := service.ParseL4(text)
		if err != nil {
			c.add(fmt.Sprintf("frontends[%d]", i), "%v", err)
		}
		s.Frontends = append(s.Frontends, f)
	}
	for i, b := range p.GetBackends() {
		s.Backends = append(s.Backends, c.backend(s, i, b))
	}
	for i, text := range p.GetSourceRanges() {
		r, err := netip.ParsePrefix(text)
		if err != nil {
			c.add(fmt.Sprintf("source_ranges[%d]", i), "%q is not a CIDR such as 192.0.2.0/24 or 2001:db8::/32", text)
		}
		s.SourceRanges = append(s.SourceRanges, r)
	}
	if h := p.GetHealthCheck(); h != nil {
		s.Check = c.health(h)
	}
	return s, c.err()
}

// backend reads an address, whose protocol is optional and that of the frontends.
func (c *checker) backend(s *Service, i int, p *apiv1.ServiceBackend) Backend {
	at := fmt.Sprintf("backends[%d]", i)
	b := Backend{Weight: service.DefaultWeight, ServerID: strings.ToLower(p.GetServerId())}
	a, err := service.ParseL4(p.GetAddress())
	if err != nil {
		c.add(at+".address", "%v", err)
	} else if strings.Contains(p.GetAddress(), "/") && len(s.Frontends) > 0 && s.Frontends[0].Protocol != a.Protocol {
		c.add(at+".address", "%q: the protocol of the frontends is %s", p.GetAddress(), s.Frontends[0].Protocol)
	}
	b.Address = a.AddrPort
	if p.Weight != nil {
		b.Weight = c.weight(at+".weight", p.GetWeight())
	}
	return b
}

func (c *checker) weight(field string, weight uint32) uint16 {
	if weight > 65535 {
		c.add(field, "%d is not in 0..65535", weight)
		return 0
	}
	return uint16(weight)
}

func (c *checker) health(p *apiv1.HealthCheck) *probe.Check {
	if p.GetPort() > 65535 {
		c.add("health_check.port", "%d is not in 1..65535", p.GetPort())
	}
	h := probe.Check{
		Kind: probe.Kind(p.GetKind()), Port: uint16(p.GetPort()), Path: p.GetPath(), Host: p.GetHost(),
		Service: p.GetService(), Via: probe.Via(p.GetVia()),
		Interval: time.Duration(p.GetIntervalMs()) * time.Millisecond,
		Timeout:  time.Duration(p.GetTimeoutMs()) * time.Millisecond,
		Rise:     int(p.GetRise()), Fall: int(p.GetFall()),
	}.WithDefaults()
	return &h
}

// toProto is the reverse of fromProto, without the fields that are only in responses.
func toProto(s *Service) *apiv1.Service {
	p := &apiv1.Service{
		Name: s.Name, AffinitySeconds: uint32(s.Affinity / time.Second),
		Algorithm: string(s.Algorithm), Mode: string(s.Forwarding), SourceDeny: s.SourceDeny,
		QuicServerIdLength: uint32(s.ServerIDLength),
	}
	for _, f := range s.Frontends {
		p.Frontends = append(p.Frontends, f.String())
	}
	for _, b := range s.Backends {
		weight := uint32(b.Weight)
		p.Backends = append(p.Backends, &apiv1.ServiceBackend{Address: b.Address.String(), Weight: &weight,
			ServerId: b.ServerID})
	}
	for _, r := range s.SourceRanges {
		p.SourceRanges = append(p.SourceRanges, r.String())
	}
	if h := s.Check; h != nil {
		p.HealthCheck = &apiv1.HealthCheck{
			Kind: string(h.Kind), Port: uint32(h.Port), Path: h.Path, Host: h.Host, Service: h.Service,
			IntervalMs: uint32(h.Interval / time.Millisecond), TimeoutMs: uint32(h.Timeout / time.Millisecond),
			Rise: uint32(h.Rise), Fall: uint32(h.Fall), Via: string(h.Via),
		}
	}
	return p
}

// states pairs the states of package service with the API's.
func states() map[service.State]apiv1.BackendState {
	return map[service.State]apiv1.BackendState{
		service.Active:      apiv1.BackendState_BACKEND_STATE_ACTIVE,
		service.Terminating: apiv1.BackendState_BACKEND_STATE_TERMINATING,
		service.Quarantined: apiv1.BackendState_BACKEND_STATE_QUARANTINED,
		service.NotReady:    apiv1.BackendState_BACKEND_STATE_NOT_READY,
		service.Maintenance: apiv1.BackendState_BACKEND_STATE_MAINTENANCE,
	}
}

// settableState is the state of a request, if it is one that can be set.
func settableState(p apiv1.BackendState) (service.State, bool) {
	for _, s := range []service.State{service.Active, service.Quarantined, service.Maintenance} {
		if states()[s] == p {
			return s, true
		}
	}
	return 0, false
}

// byServiceName orders Services.
func byServiceName(a, b *apiv1.Service) int { return cmp.Compare(a.GetName(), b.GetName()) }
