package agent

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	apiv1 "myelin/api/v1"
	"myelin/endpoint"
	"myelin/event"
	"myelin/flow"
)

// lostEvery is how often a client is told what it missed.
const lostEvery = 500 * time.Millisecond

// Monitor implements apiv1.AgentServer. Its header is sent when events that
// happen from now on will be in the stream.
func (s *answers) Monitor(r *apiv1.MonitorRequest, stream apiv1.Agent_MonitorServer) error {
	if err := s.agent.progress.wait(stream.Context(), s.stopping); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	m, err := s.agent.newMonitor(r)
	if err != nil {
		return err
	}
	sub, err := s.agent.datapath.hub.Subscribe(m.wanted)
	if err != nil {
		return status.Errorf(codes.Internal, "listen to events: %v", err)
	}
	defer sub.Close()
	_, m.refused = s.agent.datapath.hub.Lost()
	if err := stream.SendHeader(m.header()); err != nil {
		return err
	}
	tick := time.NewTicker(lostEvery)
	defer tick.Stop()
	for {
		var out *event.Event
		select {
		case raw := <-sub.Events():
			out = m.named(&raw)
		case now := <-tick.C:
			out = m.lost(now, sub.Lost())
		case <-stream.Context().Done():
			return nil
		case <-s.stopping:
			return status.Error(codes.Unavailable, "the agent stops")
		}
		if out == nil {
			continue
		}
		if err := stream.Send(out.ToProto()); err != nil {
			return err
		}
	}
}

// header tells a client that asks for flows which of them have no events.
func (m *monitor) header() metadata.MD {
	flows := len(m.types) == 0 || slices.Contains(m.types, event.FlowBegin) || slices.Contains(m.types, event.FlowEnd)
	if !flows || m.agent.Config.TracksAllFlows() {
		return metadata.MD{}
	}
	return metadata.Pairs(event.NoteHeader,
		"flows of pods without policies are not shown, unless they are masqueraded: "+
			"the datapath keeps no rows of them (to see all flows: myelin observe)")
}

// monitor is one client's view of events.
type monitor struct {
	agent    *agent
	decoder  *event.Decoder
	types    []event.Type // empty: all
	endpoint uint16       // 0: all
	pod      string       // empty: all
	refused  uint64       // by the kernel, as the client knows
}

func (a *agent) newMonitor(r *apiv1.MonitorRequest) (*monitor, error) {
	since, err := event.Monotonic()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	m := &monitor{agent: a, decoder: event.NewDecoder(a.names(), time.Now().Add(-since)), pod: r.GetPod()}
	for _, t := range r.GetTypes() {
		if event.TypeFromProto(t) == "" {
			return nil, status.Errorf(codes.InvalidArgument, "there are no events of type %s", t)
		}
		m.types = append(m.types, event.TypeFromProto(t))
	}
	if r.GetEndpoint() > endpoint.MaxID {
		return nil, status.Errorf(codes.InvalidArgument, "endpoint %d: the largest ID is %d", r.GetEndpoint(),
			endpoint.MaxID)
	}
	m.endpoint = uint16(r.GetEndpoint())
	if m.endpoint != 0 {
		if _, _, ok := a.endpoints.table.Get(a.DB.ReadTxn(), endpoint.ByID(m.endpoint)); !ok {
			return nil, status.Errorf(codes.NotFound, "there is no endpoint %d on this node", m.endpoint)
		}
	}
	return m, nil
}

// wanted reports whether the client asked for events of this type. It is the filter that needs no names.
func (m *monitor) wanted(r *event.Raw) bool {
	t := event.TypeOf(r)
	return t != "" && (len(m.types) == 0 || slices.Contains(m.types, t))
}

// named returns nil for an event that the client did not ask for.
func (m *monitor) named(r *event.Raw) *event.Event {
	if err := flow.Behind(m.agent.Datapath.Flows, r); err != nil {
		m.agent.Log.Debug("event keeps the wire's view", "error", err)
	}
	e := m.decoder.Decode(r)
	if m.endpoint != 0 && e.Endpoint != m.endpoint && !m.ofEndpoint(e) {
		return nil
	}
	if m.pod != "" && !m.ofPod(e.Src.Pod) && !m.ofPod(e.Dst.Pod) && !m.ofPod(m.podOf(e.Endpoint)) {
		return nil
	}
	return e
}

func (m *monitor) ofPod(name string) bool { return name == m.pod || strings.HasSuffix(name, "/"+m.pod) }

// podOf names the pod of a slot: of a spoofed packet the addresses don't.
func (m *monitor) podOf(id uint16) string {
	e, _, ok := m.agent.endpoints.table.Get(m.agent.DB.ReadTxn(), endpoint.ByID(id))
	if !ok {
		return ""
	}
	return e.PodName()
}

func (m *monitor) ofEndpoint(e *event.Event) bool {
	row, _, ok := m.agent.endpoints.table.Get(m.agent.DB.ReadTxn(), endpoint.ByID(m.endpoint))
	return ok && slices.ContainsFunc(row.Addresses(), func(a netip.Addr) bool {
		return a == e.Src.Addr || a == e.Dst.Addr
	})
}

// lost tells what did not reach the client, nil if all did.
func (m *monitor) lost(now time.Time, slow uint64) *event.Event {
	_, kernel := m.agent.datapath.hub.Lost()
	n := slow + kernel - m.refused
	m.refused = kernel
	if n == 0 {
		return nil
	}
	return &event.Event{Time: now, Type: event.Lost, Lost: n}
}
