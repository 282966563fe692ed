package hubble

import (
	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"myelin/bpf"
	"myelin/event"
	"myelin/hubble/eventtype"
	"myelin/policy/identity"
)

// trace completes the flow of a packet that was forwarded.
func (c *Converter) trace(f *flowpb.Flow, r *event.Raw, w way, first bool) {
	point := tracePoint(r, f.GetDestination().GetIdentity())
	f.Verdict = flowpb.Verdict_FORWARDED
	if point == flowpb.TraceObservationPoint_TO_PROXY {
		f.Verdict = flowpb.Verdict_REDIRECTED
	}
	f.TraceObservationPoint = point
	f.EventType = &flowpb.CiliumEventType{Type: eventtype.Trace}
	if point != flowpb.TraceObservationPoint_TO_ENDPOINT { // 0 as a subtype
		f.EventType.SubType = int32(point)
	}
	switch {
	case w == reply:
		f.TraceReason = flowpb.TraceReason_REPLY
	case w == request && first:
		f.TraceReason = flowpb.TraceReason_NEW
	case w == request:
		f.TraceReason = flowpb.TraceReason_ESTABLISHED
	}
	f.TrafficDirection = connectionDirection(r, w)
	// Of TCP, the datapath reports packets with certain flags alone.
	if (r.Proto != protoTCP || r.Type == event.Report) && r.Packets > 0 {
		setExtension(f, map[string]*structpb.Value{
			"packets": structpb.NewNumberValue(float64(r.Packets)), "bytes": structpb.NewNumberValue(float64(r.Bytes)),
		})
	}
}

// tracePoint is where the packet of an event was forwarded.
func tracePoint(r *event.Raw, destination uint32) flowpb.TraceObservationPoint {
	if r.Type == event.Report && bpf.DatapathHook(r.Hook) == bpf.DatapathHookHOOK_FROM_POD {
		return flowpb.TraceObservationPoint_FROM_ENDPOINT // by its socket: where packets went is not known
	}
	p := observationPoint(bpf.DatapathHook(r.Hook), bpf.DatapathOutcome(r.Outcome))
	if p == flowpb.TraceObservationPoint_TO_STACK && destination == identity.Host {
		return flowpb.TraceObservationPoint_TO_HOST
	}
	return p
}

// connectionDirection returns the direction of the connection as this node's endpoint sees it: replies have the
// direction of their requests.
func connectionDirection(r *event.Raw, w way) flowpb.TrafficDirection {
	source, known := fromSource(r)
	if !known || w == unknownWay {
		return flowpb.TrafficDirection_TRAFFIC_DIRECTION_UNKNOWN
	}
	return direction(source != (w == reply))
}

func direction(egress bool) flowpb.TrafficDirection {
	if egress {
		return flowpb.TrafficDirection_EGRESS
	}
	return flowpb.TrafficDirection_INGRESS
}

// verdict completes the flow of a new connection that rules have allowed.
func (c *Converter) verdict(f *flowpb.Flow, r *event.Raw) {
	f.Verdict = flowpb.Verdict_FORWARDED
	f.EventType = &flowpb.CiliumEventType{Type: eventtype.PolicyVerdict}
	f.PolicyMatchType = matchType(r)
	f.IngressAllowedBy = c.policies(r.Rule[bpf.DatapathPolicyDirectionPOLICY_INGRESS])
	f.EgressAllowedBy = c.policies(r.Rule[bpf.DatapathPolicyDirectionPOLICY_EGRESS])
	source, _ := fromSource(r)
	f.TrafficDirection = direction(source && f.EgressAllowedBy != nil || f.IngressAllowedBy == nil)
	c.extend(f, c.decoder.Decode(r))
}

// matchType is how rules match here: peer and port together, or only the peer of protocols without ports.
func matchType(r *event.Raw) uint32 {
	const l3Only, l3L4 = 1, 2
	switch r.Proto {
	case protoTCP, protoUDP, protoSCTP:
		return l3L4
	}
	return l3Only
}

func (c *Converter) policies(rule uint32) []*flowpb.Policy {
	if rule == 0 {
		return nil
	}
	return c.names.Policies(rule)
}

// drop completes the flow of a packet that was dropped or is only audited, or of the verdict by which it was.
func (c *Converter) drop(f *flowpb.Flow, r *event.Raw, w way) {
	named := c.decoder.Decode(r)
	c.dropDirection(f, r, w)
	f.EventType = &flowpb.CiliumEventType{Type: eventtype.PolicyVerdict}
	if r.Flags&uint16(bpf.DatapathEventFlagEVENT_AUDIT) != 0 {
		f.Verdict = flowpb.Verdict_AUDIT
	} else {
		reason := dropReason(bpf.DatapathOutcome(r.Outcome))
		f.Verdict = flowpb.Verdict_DROPPED
		f.DropReason = uint32(reason) //nolint:staticcheck // clients of older versions read it
		f.DropReasonDesc = reason
		switch {
		case bpf.DatapathEventType(r.Type) == bpf.DatapathEventTypeEVENT_DROP:
			f.EventType = &flowpb.CiliumEventType{Type: eventtype.Drop, SubType: int32(reason)}
		case reason == flowpb.DropReason_POLICY_DENY: // a rule matches
			f.PolicyMatchType = matchType(r)
		}
	}
	if named.Reason != "" {
		f.Summary += "; " + named.Reason
	}
	switch {
	case named.Policy == "":
	case named.Reason == "": // audited
		f.Summary += "; " + named.Policy
	default:
		f.Summary += ": " + named.Policy
	}
	c.extend(f, named)
}

// dropDirection sets the denied direction and the policies that denied it. Without a policy it is the packet's, which
// is considered a request unless it is known to be a reply.
func (c *Converter) dropDirection(f *flowpb.Flow, r *event.Raw, w way) {
	if r.Denied == 0 {
		if source, known := fromSource(r); known {
			f.TrafficDirection = direction(source != (w == reply))
		}
		return
	}
	denied := bpf.DatapathPolicyDirection(r.Denied - 1)
	egress := denied == bpf.DatapathPolicyDirectionPOLICY_EGRESS
	f.TrafficDirection = direction(egress)
	by := []*flowpb.Policy(nil)
	if int(denied) < len(r.Rule) {
		by = c.policies(r.Rule[denied])
	}
	if egress {
		f.EgressDeniedBy = by
		f.IngressAllowedBy = c.policies(r.Rule[bpf.DatapathPolicyDirectionPOLICY_INGRESS])
	} else {
		f.IngressDeniedBy = by
		f.EgressAllowedBy = c.policies(r.Rule[bpf.DatapathPolicyDirectionPOLICY_EGRESS])
	}
}

// extend adds what Hubble has no field for, as a google.protobuf.Struct: the drop reason as Myelin calls it, the hook,
// the rules with their places in their objects, and why a policy denies the flow.
func (c *Converter) extend(f *flowpb.Flow, e *event.Event) {
	fields := map[string]*structpb.Value{}
	for key, text := range map[string]string{
		"outcome": e.Outcome, "reason": e.Reason, "hook": string(e.Hook), "ingressRule": e.Rules.Ingress,
		"egressRule": e.Rules.Egress, "policy": e.Policy,
	} {
		if text != "" {
			fields[key] = structpb.NewStringValue(text)
		}
	}
	setExtension(f, fields)
}

func setExtension(f *flowpb.Flow, fields map[string]*structpb.Value) {
	if a, err := anypb.New(&structpb.Struct{Fields: fields}); err == nil { // else text that isn't UTF-8
		f.Extensions = a
	}
}

// socket completes the flow of a socket that was given the address of a backend.
func socket(f *flowpb.Flow, r *event.Raw) {
	const point = flowpb.SocketTranslationPoint_SOCK_XLATE_POINT_POST_DIRECTION_FWD
	f.Type, f.Verdict = flowpb.FlowType_SOCK, flowpb.Verdict_TRANSLATED
	f.EventType = &flowpb.CiliumEventType{Type: eventtype.Sock, SubType: int32(point)}
	f.SockXlatePoint = point
	f.SocketCookie, f.CgroupId = r.Cookie, r.Cgroup
	f.TrafficDirection = flowpb.TrafficDirection_EGRESS
	f.Ethernet, f.Interface = nil, nil
}
