package replay

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/hubble/consumer"
	"myelin/hubble/eventtype"
	"myelin/hubble/printer"
	"myelin/policy"
)

// maxFlows bounds the flows of a recording that policies can tell apart.
const maxFlows = 100_000

// Collector makes a recording of flows.
type Collector struct {
	recording Recording
	ends      map[string]int
	flows     map[flowKey]*flow
	order     []flowKey
	undecided map[string]*Undecided
	// opened are the connections of requests; unknown events of which it isn't known whether they are requests of one.
	opened  map[tuple]bool
	unknown []*flowpb.Flow
	Skipped int
}

// maxUnknown bounds the events that wait for what is known of their connections in the end.
const maxUnknown = 100_000

// tuple is a connection as it was opened.
type tuple struct {
	source, destination string
	ports               [2]uint32
	proto               uint8
}

func tupleOf(f *flowpb.Flow) tuple {
	from, to := printer.Ports(f)
	proto, _ := layer4(f)
	return tuple{f.GetIP().GetSource(), f.GetIP().GetDestination(), [2]uint32{from, to}, proto}
}

func (t tuple) back() tuple {
	return tuple{t.destination, t.source, [2]uint32{t.ports[1], t.ports[0]}, t.proto}
}

type flowKey struct {
	source, seen, destination int
	proto                     uint8
	port                      uint16
	service                   string
	content                   Content
}

type flow struct {
	Flow
	ports map[uint32]bool // of the source
}

// NewCollector returns an empty one.
func NewCollector() *Collector {
	return &Collector{ends: map[string]int{}, flows: map[flowKey]*flow{}, undecided: map[string]*Undecided{},
		opened: map[tuple]bool{}}
}

// Recording is what was collected.
func (c *Collector) Recording() *Recording {
	c.settle()
	out := Recording{Ends: c.recording.Ends, Flows: make([]Flow, 0, len(c.order))}
	for _, key := range c.order {
		f := c.flows[key]
		f.Connections = max(1, len(f.ports))
		out.Flows = append(out.Flows, f.Flow)
	}
	return &out
}

// settle says of events of connections that were opened in the recording what they are.
func (c *Collector) settle() {
	for _, f := range c.unknown {
		switch t := tupleOf(f); {
		case c.opened[t]:
			c.request(f)
		case c.opened[t.back()]:
			c.Skipped++
		default:
			c.leave(f, "whether it is a request is not recorded")
		}
	}
	c.unknown = nil
}

// Undecided is what was no flow that policies decide about, sorted by reason. Recording must have been called.
func (c *Collector) Undecided() []Undecided {
	out := make([]Undecided, 0, len(c.undecided))
	for _, u := range c.undecided {
		out = append(out, *u)
	}
	slices.SortFunc(out, func(a, b Undecided) int { return strings.Compare(a.Reason, b.Reason) })
	return out
}

// Add takes a flow as it was recorded.
func (c *Collector) Add(f *flowpb.Flow) {
	switch {
	case f.GetIsReply().GetValue(), f.GetEventType().GetType() == eventtype.Sock, f.GetType() == flowpb.FlowType_SOCK:
		c.Skipped++
		return
	}
	if reason := unable(f); reason != "" {
		c.leave(f, reason)
		return
	}
	switch {
	case f.GetL7() != nil || byPolicy(f) || f.GetL4().GetTCP().GetFlags().GetSYN():
		c.request(f)
	case c.opened[tupleOf(f).back()]:
		c.Skipped++ // where the request wasn't seen, the reply of a protocol without flags is taken for one
	case (f.GetIsReply() == nil || doubtful(f)) && len(c.unknown) < maxUnknown:
		c.unknown = append(c.unknown, f)
	default:
		c.request(f)
	}
}

// doubtful reports whether a flow recorded as a request may be a reply. Packets from a node to its own pods are not
// recorded, so that the recorder takes the first reply for a request if the protocol has no flags. Servers usually have
// the lower port.
func doubtful(f *flowpb.Flow) bool {
	switch f.GetTraceObservationPoint() {
	case flowpb.TraceObservationPoint_TO_HOST, flowpb.TraceObservationPoint_TO_STACK:
	default:
		return false
	}
	from, to := printer.Ports(f)
	return f.GetL4().GetTCP() == nil && from != 0 && to >= from
}

// request takes an event of a connection in the direction in which it was opened.
func (c *Collector) request(f *flowpb.Flow) {
	source, seen, destination := addressOf(f.GetIP().GetSource()), addressOf(f.GetIP().GetSourceXlated()),
		addressOf(f.GetIP().GetDestination())
	if !source.IsValid() || !destination.IsValid() {
		c.leave(f, "an address is not recorded")
		return
	}
	if from, _ := printer.Ports(f); from != 0 {
		c.opened[tupleOf(f)] = true
	}
	proto, port := layer4(f)
	service := ""
	if s := f.GetDestinationService(); s.GetName() != "" && f.GetDestination().GetPodName() == "" {
		service = s.GetNamespace() + "/" + s.GetName()
	}
	key := flowKey{service: service, source: c.end(f, f.GetSource(), source),
		destination: c.end(f, f.GetDestination(), destination), proto: proto, port: port, content: contentOf(f)}
	key.seen = key.source
	if seen.IsValid() && seen != source {
		key.seen = c.end(f, &flowpb.Endpoint{}, seen)
	}
	have := c.flows[key]
	if have == nil {
		if len(c.flows) == maxFlows {
			c.leave(f, fmt.Sprintf("more than %d flows that policies could tell apart: record less, by filters",
				maxFlows))
			return
		}
		have = &flow{Flow: Flow{Source: key.source, Seen: key.seen, Destination: key.destination, Proto: proto,
			Port: port, Service: service, Content: key.content}, ports: map[uint32]bool{}}
		c.flows[key], c.order = have, append(c.order, key)
	}
	have.count(f)
}

// count adds an event to its flow.
func (h *flow) count(f *flowpb.Flow) {
	h.Events++
	if port, _ := printer.Ports(f); port != 0 {
		h.ports[port] = true
	}
	switch {
	case f.GetVerdict() == flowpb.Verdict_DROPPED:
		h.Denied++
	case f.GetVerdict() == flowpb.Verdict_AUDIT:
		h.Audited++
	case delivered(f):
		h.Delivered++
	}
	if at := f.GetTime().AsTime(); f.GetTime().IsValid() && at.After(h.Last) {
		h.Last = at
	}
}

// delivered reports whether a packet has come where it was going: to the pod or the node, or out of the cluster.
func delivered(f *flowpb.Flow) bool {
	if f.GetL7() != nil {
		return f.GetVerdict() == flowpb.Verdict_FORWARDED
	}
	if f.GetEventType().GetType() != eventtype.Trace {
		return false
	}
	switch f.GetTraceObservationPoint() {
	case flowpb.TraceObservationPoint_TO_ENDPOINT, flowpb.TraceObservationPoint_TO_HOST:
		return true
	}
	return slices.Contains(f.GetDestination().GetLabels(), "reserved:world")
}

// unable says why policies can't be asked about a flow; empty if they can.
func unable(f *flowpb.Flow) string {
	proto, _ := layer4(f)
	switch {
	case f.GetVerdict() == flowpb.Verdict_REDIRECTED, f.GetType() == flowpb.FlowType_L7 && !recordsContent(f):
		return "decided at layer 7, by a proxy"
	case f.GetIP() == nil:
		return "not an IP packet"
	case proto == 0:
		return "its protocol or its ports are not recorded"
	case f.GetVerdict() == flowpb.Verdict_DROPPED && !byPolicy(f) && f.GetL7() == nil:
		return "dropped whatever policies say: " + reasonOf(f)
	case f.GetVerdict() == flowpb.Verdict_ERROR:
		return "the recorder reported an error"
	}
	return ""
}

// byPolicy reports whether policies denied a flow. Only requests are looked up in policies.
func byPolicy(f *flowpb.Flow) bool {
	switch f.GetVerdict() {
	case flowpb.Verdict_AUDIT:
		return true
	case flowpb.Verdict_DROPPED:
	default:
		return false
	}
	switch f.GetDropReasonDesc() {
	case flowpb.DropReason_POLICY_DENIED:
		return true
	case flowpb.DropReason_POLICY_DENY:
		return consumer.Extension(f)["outcome"].GetStringValue() != "DROP_PREFILTER"
	}
	return false
}

func reasonOf(f *flowpb.Flow) string {
	if text := consumer.Extension(f)["reason"].GetStringValue(); text != "" {
		return printer.Printable(text)
	}
	return strings.ToLower(printer.Reason(f))
}

func (c *Collector) leave(f *flowpb.Flow, reason string) {
	u := c.undecided[reason]
	if u == nil {
		u = &Undecided{Reason: reason, Example: example(f)}
		c.undecided[reason] = u
	}
	u.Events++
}

func example(f *flowpb.Flow) string {
	name := func(e *flowpb.Endpoint, s *flowpb.Service, names []string, address string) string {
		return printer.Printable(printer.Name(e, s, names, address))
	}
	if f.GetIP() == nil {
		return printer.Printable(printer.Summary(f))
	}
	return fmt.Sprintf("%s -> %s %s",
		name(f.GetSource(), f.GetSourceService(), f.GetSourceNames(), f.GetIP().GetSource()),
		name(f.GetDestination(), f.GetDestinationService(), f.GetDestinationNames(), f.GetIP().GetDestination()),
		printer.Summary(f))
}

func addressOf(text string) netip.Addr {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap().WithZone("")
}

// layer4 is the protocol, and the destination's port or the type of ICMP; 0 if it isn't recorded.
func layer4(f *flowpb.Flow) (proto uint8, port uint16) {
	l4 := f.GetL4()
	_, to := printer.Ports(f)
	switch {
	case l4.GetTCP() != nil:
		return policy.ProtoTCP, uint16(to)
	case l4.GetUDP() != nil:
		return policy.ProtoUDP, uint16(to)
	case l4.GetSCTP() != nil:
		return policy.ProtoSCTP, uint16(to)
	case l4.GetICMPv4() != nil:
		return policy.ProtoICMP, uint16(l4.GetICMPv4().GetType())
	case l4.GetICMPv6() != nil:
		return policy.ProtoICMPv6, uint16(l4.GetICMPv6().GetType())
	}
	return 0, 0
}

// end is the index of an end, which is added if it is new.
func (c *Collector) end(f *flowpb.Flow, e *flowpb.Endpoint, addr netip.Addr) int {
	out := End{Addr: addr, Labels: slices.Clone(e.GetLabels()), Namespace: e.GetNamespace(), Pod: e.GetPodName()}
	if w := e.GetWorkloads(); len(w) > 0 {
		out.Workload = w[0].GetKind() + " " + w[0].GetName()
	}
	_, node, qualified := strings.Cut(f.GetNodeName(), "/") // "cluster/node"
	if !qualified {
		node = f.GetNodeName()
	}
	host := slices.Index(out.Labels, "reserved:host")
	if host >= 0 {
		out.Labels[host] = "reserved:remote-node"
	}
	if host >= 0 || e.GetID() != 0 {
		out.Node = node
	}
	slices.Sort(out.Labels)
	out.Labels = slices.Compact(out.Labels)
	key := fmt.Sprint(addr, path.Join(out.Namespace, out.Pod), out.Labels)
	i, ok := c.ends[key]
	if !ok {
		i = len(c.recording.Ends)
		c.ends[key], c.recording.Ends = i, append(c.recording.Ends, out)
	}
	if have := &c.recording.Ends[i]; have.Node == "" {
		have.Node = out.Node
	}
	return i
}
