package relay

import (
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// remembered is how many flows of a node a cursor knows again, and overlap how much earlier than the last of them a
// stream resumes: flows of a node are in order but for what its CPUs reported at once.
const (
	remembered = 1024
	overlap    = time.Second
)

// seen is a flow that was received.
type seen struct {
	at   time.Time
	uuid string
}

// cursor is how far a request has come with one node, so that another stream can go on there.
type cursor struct {
	recent []seen // in the order of arrival, at most remembered
	known  map[string]bool
	newest time.Time
	opened time.Time // when the last stream was opened, by the relay's clock
	node   string    // as the node calls itself, "cluster/node", which its peers leave the cluster out of
}

// note remembers a flow. It returns false for one that is remembered already.
func (c *cursor) note(at time.Time, uuid string) bool {
	if uuid != "" && c.known[uuid] {
		return false
	}
	if c.known == nil {
		c.known = map[string]bool{}
	}
	if len(c.recent) == remembered {
		delete(c.known, c.recent[0].uuid)
		c.recent = c.recent[1:]
	}
	c.recent = append(c.recent, seen{at, uuid})
	c.known[uuid] = true
	if at.After(c.newest) {
		c.newest = at
	}
	return true
}

// since is where a stream resumes: no flow from then on is unknown to the cursor and was received.
func (c *cursor) since() time.Time {
	since := c.newest.Add(-overlap)
	if first := c.recent[0].at; first.After(since) {
		since = first
	}
	return since
}

// gap is a response that says that flows of a node between two times are lost, and not how many: one or more.
func gap(node string, first, last time.Time) *observerpb.GetFlowsResponse {
	if last.Before(first) {
		last = first
	}
	return &observerpb.GetFlowsResponse{NodeName: node, Time: timestamppb.New(first),
		ResponseTypes: &observerpb.GetFlowsResponse_LostEvents{LostEvents: &flowpb.LostEvent{
			Source: flowpb.LostEventSource_HUBBLE_RING_BUFFER, NumEventsLost: 1,
			First: timestamppb.New(first), Last: timestamppb.New(last),
		}}}
}
