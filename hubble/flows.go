package hubble

import (
	"context"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"myelin/hubble/filter"
	"myelin/hubble/mask"
)

// lostEvery is the least time between two reports of lost events to a client.
const lostEvery = time.Second

// flowStream is one call of GetFlows.
type flowStream struct {
	observer *Observer
	req      *observerpb.GetFlowsRequest
	send     func(any) error // a *observerpb.GetFlowsResponse, or wire
	reader   *reader
	mask     *mask.Mask
	sent     uint64
	told     time.Time // of the last report of lost events
}

// GetFlows implements observerpb.ObserverServer. Without number, first, since, until and follow it returns all flows
// that are kept. number is the limit also with since, unless the call follows.
func (o *Observer) GetFlows(req *observerpb.GetFlowsRequest, stream observerpb.Observer_GetFlowsServer) error {
	s, err := o.newFlowStream(req, stream.SendMsg)
	if err != nil {
		return err
	}
	if req.GetFollow() {
		defer o.Source.Follow()()
	}
	return s.run(stream.Context())
}

func (o *Observer) newFlowStream(req *observerpb.GetFlowsRequest,
	send func(any) error,
) (*flowStream, error) {
	since, until, err := span(req.GetSince(), req.GetUntil())
	if err != nil {
		return nil, err
	}
	if req.GetFirst() && req.GetFollow() {
		return nil, status.Error(codes.InvalidArgument, "first: a call that follows begins with the last flows")
	}
	match, err := filter.Compile(req.GetWhitelist(), req.GetBlacklist())
	if err != nil {
		return nil, err
	}
	m, err := mask.New(req.GetFieldMask().GetPaths())
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "field_mask.paths: %v", err)
	}
	if o.Connections != nil {
		o.Connections.Report()
	}
	o.Source.Pull()
	return &flowStream{observer: o, req: req, send: send, mask: m, reader: &reader{
		ring: o.Ring, source: o.Source, convert: o.Converter, tracker: newTracker(o.Interval), match: match,
		since: since, until: until, pos: o.Ring.Oldest(),
	}}, nil
}

// span converts times of a request; one that isn't set is zero.
func span(since, until *timestamppb.Timestamp) (from, to time.Time, err error) {
	for _, f := range []struct {
		name string
		in   *timestamppb.Timestamp
		out  *time.Time
	}{{"since", since, &from}, {"until", until, &to}} {
		if f.in == nil {
			continue
		}
		if err := f.in.CheckValid(); err != nil {
			return from, to, status.Errorf(codes.InvalidArgument, "%s: %v", f.name, err)
		}
		*f.out = f.in.AsTime()
	}
	return from, to, nil
}

// run sends what is kept, from the oldest event to the newest one of now, and then what comes.
func (s *flowStream) run(ctx context.Context) error {
	end := s.reader.ring.Next()
	var over bool
	var err error
	switch {
	case s.req.GetFollow() && s.req.GetNumber() == 0 && s.req.GetSince() == nil:
		s.skipTo(end)
	case s.req.GetNumber() > 0 && !s.req.GetFirst() && s.req.GetSince() == nil:
		over, err = s.last(ctx, end)
	default:
		over, err = s.forward(ctx, end)
	}
	if err == nil {
		err = s.overtaken(true)
	}
	if err != nil || over || !s.req.GetFollow() {
		return err
	}
	return s.follow(ctx)
}

func (s *flowStream) now() time.Time { return s.observer.Now() }

// skipTo learns from the events before a position.
func (s *flowStream) skipTo(end uint64) {
	for s.reader.pos < end && s.reader.step(s.now) {
		s.reader.skip()
	}
	s.reader.missed = 0 // they were not asked for
}

// last sends the last flows before a position, as many as the request says.
func (s *flowStream) last(ctx context.Context, end uint64) (over bool, err error) {
	var kept []item
	flows := uint64(0)
	for !over && s.reader.pos < end && s.reader.step(s.now) {
		if err := ctx.Err(); err != nil {
			return false, status.FromContextError(err).Err()
		}
		var it item
		var ok bool
		if it, ok, over = s.reader.take(); !ok {
			continue
		}
		if it.flow != nil {
			flows++
		}
		kept = append(kept, it)
		for flows > s.req.GetNumber() {
			if kept[0].flow != nil {
				flows--
			}
			kept[0] = item{}
			kept = kept[1:]
		}
	}
	s.reader.missed = 0 // they were older than what is asked for
	for _, it := range kept {
		if err := s.item(it); err != nil {
			return false, err
		}
	}
	return over, nil
}

// forward sends the flows before a position, the oldest first, until the request's number.
func (s *flowStream) forward(ctx context.Context, end uint64) (over bool, err error) {
	limit := s.req.GetNumber()
	if s.req.GetFollow() {
		limit = 0
	}
	for s.reader.pos < end && (limit == 0 || s.sent < limit) && s.reader.step(s.now) {
		if err := ctx.Err(); err != nil {
			return false, status.FromContextError(err).Err()
		}
		if over, err = s.next(); over || err != nil {
			return over, err
		}
	}
	return false, nil
}

// follow sends flows as they come, until the request's time or the end of the call.
func (s *flowStream) follow(ctx context.Context) error {
	s.observer.shared.join()
	defer s.observer.shared.leave()
	s.reader.shared = &s.observer.shared
	for {
		for s.reader.step(s.now) {
			if over, err := s.next(); over || err != nil {
				return err
			}
		}
		if err := s.overtaken(true); err != nil {
			return err
		}
		if err := s.reader.ring.Wait(ctx, s.reader.pos); err != nil {
			return status.FromContextError(err).Err()
		}
	}
}

// next sends what the reader has read.
func (s *flowStream) next() (over bool, err error) {
	if err := s.overtaken(false); err != nil {
		return false, err
	}
	it, ok, over := s.reader.take()
	if !ok {
		return over, nil
	}
	return false, s.item(it)
}

func (s *flowStream) item(it item) error {
	if it.lost == nil {
		s.sent++
	}
	if it.conversion == nil || !s.mask.All() {
		return s.send(s.response(it))
	}
	data, err := it.conversion.encode(func() *observerpb.GetFlowsResponse { return s.response(it) })
	if err != nil {
		return status.Errorf(codes.Internal, "encode a flow: %v", err)
	}
	return s.send(wire(data))
}

func (s *flowStream) response(it item) *observerpb.GetFlowsResponse {
	resp := &observerpb.GetFlowsResponse{NodeName: s.observer.node().Name, Time: timestamppb.New(it.time)}
	if it.lost != nil {
		resp.ResponseTypes = &observerpb.GetFlowsResponse_LostEvents{LostEvents: it.lost}
	} else {
		resp.ResponseTypes = &observerpb.GetFlowsResponse_Flow{Flow: s.mask.Cut(it.flow)}
	}
	return resp
}

// overtaken tells the client what it has missed: from time to time, or at once where nothing else is to be sent.
func (s *flowStream) overtaken(atOnce bool) error {
	now := s.now()
	if s.reader.missed == 0 || !atOnce && now.Sub(s.told) < lostEvery {
		return nil
	}
	s.told = now
	return s.item(item{lost: s.reader.overwritten(), time: now})
}
