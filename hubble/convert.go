package hubble

import (
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"time"
	"unsafe"

	"github.com/cespare/xxhash/v2"
	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"myelin/bpf"
	"myelin/event"
	"myelin/l7/control"
)

// Names know what the addresses and numbers of events are called. All is looked up when a flow is read, so that a name
// may be newer than its flow. Implementations must be safe for concurrent use.
type Names interface {
	event.Names
	// Endpoint is the endpoint with an address, never nil: one outside of the cluster has the identity world.
	Endpoint(netip.Addr) *flowpb.Endpoint
	// Address returns the address of the endpoint whose network namespace has a cookie, the zero Addr if it has none of
	// the family. Kernels before 5.14 do not report cookies.
	Address(netns uint64, v6 bool) netip.Addr
	// Service is the Service that has a frontend, nil if none does.
	Service(at netip.AddrPort, protocol uint8) *flowpb.Service
	// DNS returns the names by which the pod of this node with an endpoint ID knows an address. The result is shared.
	DNS(endpoint uint32, addr netip.Addr) []string
	// Policies returns the objects that a rule was read from, nil if the rule no longer exists.
	Policies(rule uint32) []*flowpb.Policy
}

// Node describes the node in its flows.
type Node struct {
	// Name is "cluster/node", as Hubble has it.
	Name string
	// Version is the agent's.
	Version string
	// Labels returns the labels of the Node, each "key=value".
	Labels func() []string
}

// Converter makes flows of events.
type Converter struct {
	names   Names
	node    Node
	boot    time.Time
	decoder *event.Decoder
	emitter *flowpb.Emitter
	id      [8]byte // of the node since it was booted: UUIDs begin with it

	// Redact has the fields that flows of layer 7 leave out. It is set before the converter is used.
	Redact Redaction
	// L7Records returns a record of the proxy by its number, and whether it is still there. It is set before, too.
	L7Records func(uint64) (control.Record, bool)
}

// NewConverter makes a converter. boot is when CLOCK_MONOTONIC was zero; id makes the UUIDs of flows unique among nodes
// and boots. An event has the same UUID whenever it is converted, by this agent or by the next one.
func NewConverter(names Names, node Node, boot time.Time, id [8]byte) *Converter {
	return &Converter{names: names, node: node, boot: boot, decoder: event.NewDecoder(names, boot), id: id,
		emitter: &flowpb.Emitter{Name: "Myelin", Version: node.Version}}
}

// time is when an event happened.
func (c *Converter) time(r *event.Raw) time.Time { return c.boot.Add(time.Duration(r.TimeNs)) }

// flow converts an event, whose packet has a direction.
func (c *Converter) flow(r *event.Raw, v *view, w way, first bool) *flowpb.Flow {
	c.findSource(r, v)
	f := &flowpb.Flow{
		Time: timestamppb.New(c.time(r)), Uuid: c.uuid(r),
		Emitter:  c.emitter,
		Type:     flowpb.FlowType_L3_L4,
		NodeName: c.node.Name, NodeLabels: c.node.Labels(),
		Ethernet: ethernet(r), IP: ip(r, v), L4: layer4(r, v), Summary: summary(r),
	}
	if v.src.Addr().IsValid() || v.dst.Addr().IsValid() {
		f.Source, f.Destination = c.endpoint(v.src.Addr()), c.endpoint(v.dst.Addr())
		f.SourceNames = c.names.DNS(f.GetDestination().GetID(), v.src.Addr())
		f.DestinationNames = c.names.DNS(f.GetSource().GetID(), v.dst.Addr())
		c.services(f, r, v)
	}
	if w != unknownWay {
		f.IsReply = wrapperspb.Bool(w == reply)
		f.Reply = w == reply //nolint:staticcheck // clients of older versions read it
	}
	if r.Ifindex != 0 {
		f.Interface = &flowpb.NetworkInterface{Index: r.Ifindex, Name: c.names.Link(int(r.Ifindex))}
	}
	switch bpf.DatapathEventType(r.Type) {
	case l7Entry:
		c.l7(f, r)
	case bpf.DatapathEventTypeEVENT_DROP:
		c.drop(f, r, w)
	case bpf.DatapathEventTypeEVENT_SOCKET:
		socket(f, r)
	case bpf.DatapathEventTypeEVENT_FLOW_BEGIN:
		if r.Denied != 0 || r.Flags&uint16(bpf.DatapathEventFlagEVENT_AUDIT) != 0 {
			c.drop(f, r, w)
		} else {
			c.verdict(f, r)
		}
	default:
		c.trace(f, r, w, first)
	}
	return f
}

// findSource completes an event of a socket, which isn't bound yet: its source is the endpoint of its namespace.
func (c *Converter) findSource(r *event.Raw, v *view) {
	if bpf.DatapathEventType(r.Type) == bpf.DatapathEventTypeEVENT_SOCKET && r.Netns != 0 {
		v.src = netip.AddrPortFrom(c.names.Address(r.Netns, v.dst.Addr().Is6()), v.src.Port())
	}
}

func (c *Converter) endpoint(a netip.Addr) *flowpb.Endpoint {
	if !a.IsValid() {
		return &flowpb.Endpoint{}
	}
	return c.names.Endpoint(a)
}

// services names the Services of both ends: the one that the packet was sent to, or that it comes from.
func (c *Converter) services(f *flowpb.Flow, r *event.Raw, v *view) {
	source, destination := v.src, v.dst
	if v.srcXlated.IsValid() {
		source = v.srcXlated
	}
	if v.service.IsValid() {
		destination = v.service
	}
	f.SourceService = c.names.Service(source, r.Proto)
	f.DestinationService = c.names.Service(destination, r.Proto)
}

// uuid is of version 8 (RFC 9562): the node's ID, and a hash of the event, which has its time in nanoseconds.
func (c *Converter) uuid(r *event.Raw) string {
	var b [16]byte
	copy(b[:8], c.id[:])
	hash := xxhash.Sum64(unsafe.Slice((*byte)(unsafe.Pointer(r)), unsafe.Sizeof(*r)))
	binary.BigEndian.PutUint64(b[8:], hash)
	b[6] = b[6]&0x0f | 0x80
	b[8] = b[8]&0x3f | 0x80
	var text [36]byte
	hex.Encode(text[:8], b[:4])
	hex.Encode(text[9:13], b[4:6])
	hex.Encode(text[14:18], b[6:8])
	hex.Encode(text[19:23], b[8:10])
	hex.Encode(text[24:], b[10:])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}

func ethernet(r *event.Raw) *flowpb.Ethernet {
	if r.Smac.B == [6]byte{} {
		return nil
	}
	return &flowpb.Ethernet{Source: net.HardwareAddr(r.Smac.B[:]).String()}
}

func ip(r *event.Raw, v *view) *flowpb.IP {
	out := &flowpb.IP{}
	switch r.Family {
	case 4:
		out.IpVersion = flowpb.IPVersion_IPv4
	case 6:
		out.IpVersion = flowpb.IPVersion_IPv6
	default:
		return nil
	}
	if a := v.src.Addr(); a.IsValid() {
		out.Source = a.String()
	}
	if a := v.dst.Addr(); a.IsValid() {
		out.Destination = a.String()
	}
	if a := v.srcXlated.Addr(); a.IsValid() && a != v.src.Addr() {
		out.SourceXlated = a.String()
	}
	out.Encrypted = bpf.DatapathOutcome(r.Outcome) == bpf.DatapathOutcomeFORWARD_ENCRYPT
	return out
}
