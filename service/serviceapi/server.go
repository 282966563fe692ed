package serviceapi

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cilium/statedb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	apiv1 "myelin/api/v1"
	"myelin/cluster"
	"myelin/service"
)

// Server implements apiv1.ServicesServer. Its fields must be set before the
// first request.
type Server struct {
	apiv1.UnimplementedServicesServer
	DB       *statedb.DB
	Manager  *Manager
	Services *service.Services
	// Stopping is closed when streams must end.
	Stopping <-chan struct{}
}

// statusOf is an error as clients get it.
func statusOf(err error) error {
	var fields cluster.FieldErrors
	code := codes.Internal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &fields):
		code = codes.InvalidArgument
	case errors.Is(err, errTaken):
		code = codes.AlreadyExists
	case errors.Is(err, errUnknown):
		code = codes.NotFound
	}
	return status.Error(code, err.Error())
}

// Upsert implements apiv1.ServicesServer.
func (s *Server) Upsert(_ context.Context, r *apiv1.UpsertServiceRequest) (*apiv1.UpsertServiceResponse, error) {
	if r.GetService() == nil {
		return nil, status.Error(codes.InvalidArgument, "service: must be set")
	}
	svc, err := fromProto(r.GetService())
	if err != nil {
		return nil, statusOf(err)
	}
	created, err := s.Manager.Upsert(svc)
	return &apiv1.UpsertServiceResponse{Created: created}, statusOf(err)
}

// Delete implements apiv1.ServicesServer.
func (s *Server) Delete(_ context.Context, r *apiv1.DeleteServiceRequest) (*apiv1.DeleteServiceResponse, error) {
	return &apiv1.DeleteServiceResponse{}, statusOf(s.Manager.Delete(r.GetName()))
}

// List implements apiv1.ServicesServer.
func (s *Server) List(context.Context, *apiv1.ListServicesRequest) (*apiv1.ListServicesResponse, error) {
	return &apiv1.ListServicesResponse{Services: s.list(s.DB.ReadTxn())}, nil
}

// list is all Services with their state.
func (s *Server) list(txn statedb.ReadTxn) []*apiv1.Service {
	var list []*apiv1.Service
	for svc := range s.Manager.Services.All(txn) {
		p := toProto(svc)
		if row, _, ok := s.Services.Desired.Services.Get(txn, service.ByKey(svc.key())); ok {
			p.Id, p.Problems = row.ID, row.Problems
		}
		for i, b := range svc.Backends {
			s.backend(txn, svc, b, p.GetBackends()[i])
		}
		list = append(list, p)
	}
	slices.SortFunc(list, byServiceName)
	return list
}

// backend fills in the fields that are only in responses.
func (s *Server) backend(txn statedb.ReadTxn, svc *Service, b Backend, p *apiv1.ServiceBackend) {
	key := svc.probe(b)
	if row, _, ok := s.Services.Desired.Backends.Get(txn, service.BackendByAddress(key.backend)); ok {
		for _, use := range row.Uses {
			if use.Service == svc.key() {
				p.State = states()[use.State]
			}
		}
	}
	if row, _, ok := s.Manager.Probes.Get(txn, probeKeys().Query(key)); ok {
		p.Health, p.Via = row.Text(), string(row.Via)
	}
}

// watchDelay is how long changes in quick succession are collected.
const watchDelay = 20 * time.Millisecond

// Watch implements apiv1.ServicesServer.
func (s *Server) Watch(_ *apiv1.WatchServicesRequest, stream grpc.ServerStreamingServer[apiv1.ServiceEvent]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	go func() {
		select {
		case <-s.Stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	sent, synced := map[string]*apiv1.Service{}, false
	for {
		txn := s.DB.ReadTxn()
		again := s.changes(txn)
		now, err := difference(sent, s.list(txn), stream.Send)
		if err != nil {
			return err
		}
		if sent = now; !synced {
			if err := stream.Send(&apiv1.ServiceEvent{
				Type: apiv1.ServiceEventType_SERVICE_EVENT_TYPE_SYNCED,
			}); err != nil {
				return err
			}
			synced = true
		}
		if _, err := again.Wait(ctx, watchDelay); err != nil {
			if stream.Context().Err() == nil {
				return status.Error(codes.Unavailable, "the agent stops")
			}
			return status.FromContextError(err).Err()
		}
	}
}

// changes are the channels to wait for: of everything that list reads.
func (s *Server) changes(txn statedb.ReadTxn) *statedb.WatchSet {
	set := statedb.NewWatchSet()
	_, programmed := s.Manager.Services.AllWatch(txn)
	_, probes := s.Manager.Probes.AllWatch(txn)
	_, computed := s.Services.Desired.Services.AllWatch(txn)
	_, backends := s.Services.Desired.Backends.AllWatch(txn)
	set.Add(programmed, probes, computed, backends)
	return set
}

// difference sends what differs from sent, and returns what is then sent.
func difference(
	sent map[string]*apiv1.Service, list []*apiv1.Service, send func(*apiv1.ServiceEvent) error,
) (map[string]*apiv1.Service, error) {
	now := make(map[string]*apiv1.Service, len(list))
	for _, p := range list {
		now[p.GetName()] = p
		if proto.Equal(sent[p.GetName()], p) {
			continue
		}
		const upserted = apiv1.ServiceEventType_SERVICE_EVENT_TYPE_UPSERTED
		if err := send(&apiv1.ServiceEvent{Type: upserted, Service: p}); err != nil {
			return nil, err
		}
	}
	for name := range sent {
		if now[name] != nil {
			continue
		}
		const deleted = apiv1.ServiceEventType_SERVICE_EVENT_TYPE_DELETED
		if err := send(&apiv1.ServiceEvent{Type: deleted, Service: &apiv1.Service{Name: name}}); err != nil {
			return nil, err
		}
	}
	return now, nil
}

// SetBackend implements apiv1.ServicesServer.
func (s *Server) SetBackend(_ context.Context, r *apiv1.SetBackendRequest) (*apiv1.SetBackendResponse, error) {
	var c checker
	backend, err := service.ParseL4(r.GetBackend())
	if err != nil {
		c.add("backend", "%v", err)
	}
	weight := c.weight("weight", r.GetWeight())
	state, settable := settableState(r.GetState())
	setsState := r.GetState() != apiv1.BackendState_BACKEND_STATE_UNSPECIFIED
	switch {
	case setsState && !settable:
		c.add("state", "only ACTIVE, QUARANTINED and MAINTENANCE can be set")
	case !setsState && r.Weight == nil:
		c.add("state", "neither state nor weight is set")
	}
	if r.GetService() != "" && r.Weight == nil {
		c.add("service", "is for a weight: a state is of the address, whoever has it")
	}
	if err := c.err(); err != nil {
		return nil, statusOf(err)
	}
	// ACTIVE is allowed for a backend that no Service has any more: it deletes the state.
	_, _, known := s.Services.Desired.Backends.Get(s.DB.ReadTxn(), service.BackendByAddress(backend))
	if setsState && !known && state != service.Active {
		return nil, status.Errorf(codes.NotFound, "backend: no Service has %s", backend)
	}
	if r.Weight != nil {
		if err := s.Manager.SetWeight(r.GetService(), backend, weight); err != nil {
			return nil, statusOf(err)
		}
	}
	if setsState {
		if err := s.Services.SetState(backend, state); err != nil {
			return nil, statusOf(err)
		}
	}
	return &apiv1.SetBackendResponse{}, nil
}
