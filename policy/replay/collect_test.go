package replay_test

import (
	"slices"
	"testing"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"myelin/hubble/eventtype"
	"myelin/policy/replay"
)

func udp(from, to uint32) *flowpb.Layer4 {
	return &flowpb.Layer4{Protocol: &flowpb.Layer4_UDP{UDP: &flowpb.UDP{SourcePort: from, DestinationPort: to}}}
}

// request is a datagram of a pod to another one, reported by the node of the first.
func request(edit func(*flowpb.Flow)) *flowpb.Flow {
	f := &flowpb.Flow{NodeName: "default/node1", Verdict: flowpb.Verdict_FORWARDED, IsReply: wrapperspb.Bool(false),
		IP:        &flowpb.IP{Source: "10.0.1.2", Destination: "10.0.2.2", IpVersion: flowpb.IPVersion_IPv4},
		L4:        udp(40000, 53),
		EventType: &flowpb.CiliumEventType{Type: eventtype.Trace},
		Source: &flowpb.Endpoint{ID: 7, Namespace: "demo", PodName: "client", Labels: []string{"k8s:app=client"},
			Workloads: []*flowpb.Workload{{Kind: "Deployment", Name: "client"}}},
		Destination:           &flowpb.Endpoint{Namespace: "demo", PodName: "dns", Labels: []string{"k8s:app=dns"}},
		TraceObservationPoint: flowpb.TraceObservationPoint_TO_NETWORK}
	if edit != nil {
		edit(f)
	}
	return f
}

// back turns a flow round.
func back(f *flowpb.Flow) {
	f.IP.Source, f.IP.Destination = f.IP.Destination, f.IP.Source
	f.Source, f.Destination = f.Destination, f.Source
	f.L4 = udp(53, 40000)
}

// asks makes a flow an HTTP request, or without a method a TLS connection.
func asks(method, url string) func(*flowpb.Flow) {
	return func(f *flowpb.Flow) {
		f.Type, f.L7 = flowpb.FlowType_L7, &flowpb.Layer7{Type: flowpb.L7FlowType_REQUEST,
			Record: &flowpb.Layer7_Http{Http: &flowpb.HTTP{Method: method, Url: url}}}
	}
}

func queries(name string) func(*flowpb.Flow) {
	return func(f *flowpb.Flow) {
		f.Type, f.L7 = flowpb.FlowType_L7, &flowpb.Layer7{Type: flowpb.L7FlowType_REQUEST,
			Record: &flowpb.Layer7_Dns{Dns: &flowpb.DNS{Query: name}}}
	}
}

// collected is what becomes of flows.
type collected struct {
	flows              []*flowpb.Flow
	questions, skipped int
	undecided          string
}

func (test *collected) run(t *testing.T) {
	c := replay.NewCollector()
	for _, f := range test.flows {
		c.Add(f)
	}
	rec, undecided := c.Recording(), c.Undecided()
	if len(rec.Flows) != test.questions || c.Skipped != test.skipped {
		t.Errorf("%d questions, %d skipped, want %d and %d", len(rec.Flows), c.Skipped, test.questions, test.skipped)
	}
	if test.undecided == "" && len(undecided) > 0 || test.undecided != "" &&
		!slices.ContainsFunc(undecided, func(u replay.Undecided) bool { return u.Reason == test.undecided }) {
		t.Errorf("not decided: %+v, want %q", undecided, test.undecided)
	}
}

// TestCollect: events of one flow are one question, replies are none, and what can't be decided has a reason.
func TestCollect(t *testing.T) {
	for name, test := range map[string]collected{
		"connections of one client": {flows: []*flowpb.Flow{request(nil),
			request(func(f *flowpb.Flow) { f.L4 = udp(40001, 53) })}, questions: 1},
		"another port": {flows: []*flowpb.Flow{request(nil),
			request(func(f *flowpb.Flow) { f.L4 = udp(40001, 54) })}, questions: 2},
		"other labels": {flows: []*flowpb.Flow{request(nil),
			request(func(f *flowpb.Flow) { f.Source.Labels = []string{"k8s:app=other"} })}, questions: 2},
		"a reply": {flows: []*flowpb.Flow{request(func(f *flowpb.Flow) { f.IsReply = wrapperspb.Bool(true) })},
			skipped: 1},
		"a reply that is taken for a request": {flows: []*flowpb.Flow{request(nil), request(back)}, questions: 1,
			skipped: 1},
		"a direction that follows from the request": {flows: []*flowpb.Flow{request(func(f *flowpb.Flow) {
			back(f)
			f.IsReply = nil
		}), request(nil)}, questions: 1, skipped: 1},
		"a direction that isn't known": {flows: []*flowpb.Flow{request(func(f *flowpb.Flow) { f.IsReply = nil })},
			undecided: "whether it is a request is not recorded"},
		"perhaps a reply to the node": {flows: []*flowpb.Flow{request(func(f *flowpb.Flow) {
			back(f)
			f.TraceObservationPoint = flowpb.TraceObservationPoint_TO_HOST
		})}, undecided: "whether it is a request is not recorded"},
		"denied, of no known direction": {flows: []*flowpb.Flow{request(func(f *flowpb.Flow) {
			f.IsReply, f.Verdict, f.DropReasonDesc = nil, flowpb.Verdict_DROPPED, flowpb.DropReason_POLICY_DENIED
		})}, questions: 1},
		"dropped elsewhere": {flows: []*flowpb.Flow{request(func(f *flowpb.Flow) {
			f.Verdict, f.DropReasonDesc = flowpb.Verdict_DROPPED, flowpb.DropReason_STALE_OR_UNROUTABLE_IP
		})}, undecided: "dropped whatever policies say: stale or unroutable ip"},
		"layer 7": {flows: []*flowpb.Flow{request(func(f *flowpb.Flow) { f.Type = flowpb.FlowType_L7 })},
			undecided: "decided at layer 7, by a proxy"},
		"no ports": {flows: []*flowpb.Flow{request(func(f *flowpb.Flow) { f.L4 = nil })},
			undecided: "its protocol or its ports are not recorded"},
		"a socket": {flows: []*flowpb.Flow{request(func(f *flowpb.Flow) { f.Type = flowpb.FlowType_SOCK })},
			skipped: 1},
	} {
		t.Run(name, test.run)
	}
}

// TestCollectLayer7: requests and queries that the proxy has recorded are questions of their own.
func TestCollectLayer7(t *testing.T) {
	for name, test := range map[string]collected{
		"requests of layer 7": {flows: []*flowpb.Flow{request(asks("GET", "http://web/a?b")),
			request(asks("GET", "http://web/a?b")), request(asks("POST", "http://web/a?b"))}, questions: 2},
		"a TLS connection": {flows: []*flowpb.Flow{request(asks("", "https://web"))}, questions: 1},
		"queries": {flows: []*flowpb.Flow{request(queries("a.example.")), request(queries("A.example")),
			request(queries("b.example"))}, questions: 2},
		"a response of layer 7": {flows: []*flowpb.Flow{request(func(f *flowpb.Flow) {
			asks("GET", "http://web/a")(f)
			f.L7.Type = flowpb.L7FlowType_RESPONSE
		})}, undecided: "decided at layer 7, by a proxy"},
	} {
		t.Run(name, test.run)
	}
}

// TestCollectEnds: what a question says of its ends.
func TestCollectEnds(t *testing.T) {
	c := replay.NewCollector()
	c.Add(request(nil))
	c.Add(request(func(f *flowpb.Flow) {
		f.NodeName, f.TraceObservationPoint = "default/node2", flowpb.TraceObservationPoint_TO_ENDPOINT
		f.Source.ID, f.Destination.ID, f.L4 = 0, 9, udp(40001, 53)
	}))
	c.Add(request(func(f *flowpb.Flow) {
		f.IP.Destination, f.IP.SourceXlated = "198.51.100.1", "192.168.64.1"
		f.Destination = &flowpb.Endpoint{Labels: []string{"reserved:world-ipv4", "reserved:world"}}
	}))
	rec := c.Recording()
	if len(rec.Flows) != 2 || rec.Flows[0].Connections != 2 || rec.Flows[0].Events != 2 || rec.Flows[0].Delivered != 1 {
		t.Fatalf("%+v", rec.Flows)
	}
	source, destination := rec.Ends[rec.Flows[0].Source], rec.Ends[rec.Flows[0].Destination]
	if source.Node != "node1" || destination.Node != "node2" || source.Workload != "Deployment client" {
		t.Errorf("ends %+v and %+v", source, destination)
	}
	if seen := rec.Ends[rec.Flows[1].Seen]; seen.Addr.String() != "192.168.64.1" || rec.Flows[1].Delivered != 1 {
		t.Errorf("the world sees %+v, %+v", seen, rec.Flows[1])
	}
}

// TestCollectContent: what a question says of what the proxy saw, and of the destination's names.
func TestCollectContent(t *testing.T) {
	c := replay.NewCollector()
	c.Add(request(func(f *flowpb.Flow) {
		asks("GET", "http://web.demo/a?b=c")(f)
		f.Verdict = flowpb.Verdict_DROPPED
	}))
	c.Add(request(func(f *flowpb.Flow) {
		f.Destination = &flowpb.Endpoint{Labels: []string{"reserved:world"}}
		f.IP.Destination, f.DestinationNames = "198.51.100.1", []string{"b.example", "a.example"}
	}))
	rec := c.Recording()
	if len(rec.Flows) != 2 {
		t.Fatalf("%+v", rec.Flows)
	}
	want := replay.Content{HTTP: "GET /a?b=c", Host: "web.demo"}
	if f := rec.Flows[0]; f.Content != want || f.Denied != 1 || f.Delivered != 0 {
		t.Errorf("got %+v, want %+v, denied", f, want)
	}
	if f, want := rec.Flows[1], (replay.Content{Names: "a.example b.example"}); f.Content != want {
		t.Errorf("got %+v, want %+v", f, want)
	}
}
