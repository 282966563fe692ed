package event

import (
	"net/netip"
	"time"

	apiv1 "myelin/api/v1"
	"myelin/bpf"
)

// NoteHeader is the key of the metadata that the agent sends at the start of a
// stream of events: what the stream will not show, and why.
const NoteHeader = "myelin-note"

// types are indexed by their number in the API.
func types() [5]Type {
	return [...]Type{
		apiv1.EventType_EVENT_TYPE_DROP:       Drop,
		apiv1.EventType_EVENT_TYPE_FLOW_BEGIN: FlowBegin,
		apiv1.EventType_EVENT_TYPE_FLOW_END:   FlowEnd,
		apiv1.EventType_EVENT_TYPE_LOST:       Lost,
	}
}

// TypeToProto returns a type as the API has it.
func TypeToProto(t Type) apiv1.EventType {
	for number, v := range types() {
		if v == t {
			return apiv1.EventType(number)
		}
	}
	return apiv1.EventType_EVENT_TYPE_UNSPECIFIED
}

// TypeFromProto is the inverse of TypeToProto, empty for one that is not known.
func TypeFromProto(p apiv1.EventType) Type {
	if list := types(); p >= 0 && int(p) < len(list) {
		return list[p]
	}
	return ""
}

// ToProto returns the event as the API sends it.
func (e *Event) ToProto() *apiv1.Event {
	return &apiv1.Event{
		TimeNs: e.Time.UnixNano(), Type: TypeToProto(e.Type), Hook: string(e.Hook), Outcome: e.Outcome,
		Reason: e.Reason,
		Source: e.Src.toProto(), Destination: e.Dst.toProto(), Protocol: uint32(e.Protocol),
		Ethertype: uint32(e.EtherType),
		TcpFlags:  uint32(e.TCPFlags), Length: e.Length, InterfaceIndex: e.Index, Interface: e.Interface,
		Endpoint: uint32(e.Endpoint), SourceMac: e.SrcMAC, Lost: e.Lost,
		IngressRule: e.Rules.Ingress, EgressRule: e.Rules.Egress, Denied: e.Denied, Policy: e.Policy,
	}
}

func (p Party) toProto() *apiv1.Party {
	out := &apiv1.Party{Port: uint32(p.Port), Pod: p.Pod, Identity: p.Identity}
	if p.Addr.IsValid() {
		out.Address = p.Addr.String()
	}
	return out
}

// FromProto is the inverse of ToProto. Numbers out of range and addresses that
// are none become others: both ends are of one program.
func FromProto(p *apiv1.Event) *Event {
	return &Event{
		Time: time.Unix(0, p.GetTimeNs()), Type: TypeFromProto(p.GetType()), Hook: bpf.Hook(p.GetHook()),
		Outcome: p.GetOutcome(),
		Reason:  p.GetReason(), Src: partyFromProto(p.GetSource()), Dst: partyFromProto(p.GetDestination()),
		Protocol: uint8(p.GetProtocol()), EtherType: uint16(p.GetEthertype()), TCPFlags: TCPFlags(p.GetTcpFlags()),
		Length: p.GetLength(),
		Index:  p.GetInterfaceIndex(), Interface: p.GetInterface(), Endpoint: uint16(p.GetEndpoint()),
		SrcMAC: p.GetSourceMac(), Lost: p.GetLost(),
		Rules: Rules{Ingress: p.GetIngressRule(), Egress: p.GetEgressRule()}, Denied: p.GetDenied(),
		Policy: p.GetPolicy(),
	}
}

func partyFromProto(p *apiv1.Party) Party {
	addr, err := netip.ParseAddr(p.GetAddress())
	if err != nil {
		addr = netip.Addr{}
	}
	return Party{Addr: addr, Port: uint16(p.GetPort()), Pod: p.GetPod(), Identity: p.GetIdentity()}
}
