package metrics

import (
	"slices"
	"strconv"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"github.com/gopacket/gopacket/layers"

	"myelin/hubble/consumer"
	"myelin/hubble/eventtype"
)

func (b *builder) flow() func(*flowpb.Flow) {
	flows := b.counter("flows_processed_total", "Total number of flows processed",
		"protocol", "type", "subtype", "verdict")
	return func(f *flowpb.Flow) {
		kind, sub := kinds(f)
		flows.count(sample{flow: f}, consumer.Protocol(f), kind, sub, f.GetVerdict().String())
	}
}

// kinds are the labels "type" and "subtype" of a flow.
func kinds(f *flowpb.Flow) (kind, sub string) {
	switch t := f.GetEventType().GetType(); t {
	case eventtype.AccessLog:
		return "L7", consumer.L7(f)
	case eventtype.Drop:
		return "Drop", ""
	case eventtype.Capture:
		return "Capture", ""
	case eventtype.Trace:
		return "Trace", eventtype.TracePoint(f.GetEventType().GetSubType())
	case eventtype.PolicyVerdict:
		return "PolicyVerdict", ""
	default:
		return "Unknown", strconv.Itoa(int(t))
	}
}

func (b *builder) drop() func(*flowpb.Flow) {
	drops := b.counter("drop_total", "Number of drops", "reason", "protocol")
	return func(f *flowpb.Flow) {
		if f.GetVerdict() == flowpb.Verdict_DROPPED {
			drops.count(sample{flow: f}, f.GetDropReasonDesc().String(), consumer.Protocol(f))
		}
	}
}

// passed reports whether a flow was forwarded, or redirected to a proxy.
func passed(f *flowpb.Flow) bool {
	return f.GetVerdict() == flowpb.Verdict_FORWARDED || f.GetVerdict() == flowpb.Verdict_REDIRECTED
}

func (b *builder) tcp() func(*flowpb.Flow) {
	flags := b.counter("tcp_flags_total", "TCP flag occurrences", "flag", "family")
	return func(f *flowpb.Flow) {
		set := f.GetL4().GetTCP().GetFlags()
		if !passed(f) || set == nil || f.GetIP() == nil {
			return
		}
		family := f.GetIP().GetIpVersion().String()
		if set.GetFIN() {
			flags.count(sample{flow: f}, "FIN", family)
		}
		switch {
		case set.GetSYN() && set.GetACK():
			flags.count(sample{flow: f}, "SYN-ACK", family)
		case set.GetSYN():
			flags.count(sample{flow: f}, "SYN", family)
		}
		if set.GetRST() {
			flags.count(sample{flow: f}, "RST", family)
		}
	}
}

func (b *builder) portDistribution() func(*flowpb.Flow) {
	ports := b.counter("port_distribution_total", "Numbers of packets distributed by destination port",
		"protocol", "port")
	return func(f *flowpb.Flow) {
		// The destination of a reply is a client's port. What may be a reply is left out too.
		if !passed(f) || f.GetIsReply() == nil || f.GetIsReply().GetValue() {
			return
		}
		name := consumer.L4(f)
		if name == "" {
			return
		}
		_, port, _ := consumer.Ports(f)
		ports.count(sample{flow: f}, name, strconv.Itoa(int(port)))
	}
}

func (b *builder) icmp() func(*flowpb.Flow) {
	messages := b.counter("icmp_total", "Number of ICMP messages", "family", "type")
	return func(f *flowpb.Flow) {
		if v4 := f.GetL4().GetICMPv4(); v4 != nil {
			code := layers.CreateICMPv4TypeCode(uint8(v4.GetType()), uint8(v4.GetCode()))
			messages.count(sample{flow: f}, "IPv4", code.String())
		}
		if v6 := f.GetL4().GetICMPv6(); v6 != nil {
			code := layers.CreateICMPv6TypeCode(uint8(v6.GetType()), uint8(v6.GetCode()))
			messages.count(sample{flow: f}, "IPv6", code.String())
		}
	}
}

// identityHost is the reserved identity of the node itself.
const identityHost = 1

func (b *builder) policy() func(*flowpb.Flow) {
	verdicts := b.counter("policy_verdicts_total", "Total number of Cilium network policy verdicts",
		"direction", "match", "action")
	return func(f *flowpb.Flow) {
		match := ""
		switch f.GetEventType().GetType() {
		case eventtype.PolicyVerdict:
			// The host may always connect to pods of its own: no policy is asked.
			if f.GetSource().GetIdentity() == identityHost {
				return
			}
			match = matchName(f.GetPolicyMatchType())
		case eventtype.AccessLog:
			match = "l7/" + strings.ToLower(consumer.L7(f))
		default:
			return
		}
		verdicts.count(sample{flow: f}, strings.ToLower(f.GetTrafficDirection().String()), match,
			strings.ToLower(f.GetVerdict().String()))
	}
}

// matchName is the name of Flow.policy_match_type.
func matchName(m uint32) string {
	names := []string{"none", "l3-only", "l3-l4", "l4-only", "all", "l3-proto", "proto-only"}
	if int(m) >= len(names) {
		return "unknown"
	}
	return names[m]
}

func (b *builder) flowsToWorld() func(*flowpb.Flow) {
	anyDrop, withPort, synOnly := b.metric.Has("any-drop"), b.metric.Has("port"), b.metric.Has("syn-only")
	own := []string{"protocol", "verdict"}
	if withPort {
		own = append(own, "port")
	}
	flows := b.counter("flows_to_world_total", "Total number of flows to reserved:world", own...)
	return func(f *flowpb.Flow) {
		dropped, reply := f.GetVerdict() == flowpb.Verdict_DROPPED, f.GetIsReply().GetValue()
		switch {
		case !world(f.GetDestination().GetLabels()) || f.GetEventType() == nil || f.GetL4() == nil:
			return
		case dropped && !anyDrop && f.GetDropReasonDesc() != flowpb.DropReason_POLICY_DENIED:
			return
		case !dropped && reply, synOnly && (reply || !f.GetL4().GetTCP().GetFlags().GetSYN()):
			return
		}
		values := []string{consumer.Protocol(f), f.GetVerdict().String()}
		if withPort {
			port := ""
			if _, to, ok := consumer.Ports(f); ok {
				port = strconv.Itoa(int(to))
			}
			values = append(values, port)
		}
		flows.count(sample{flow: f}, values...)
	}
}

func world(labels []string) bool {
	return slices.ContainsFunc(labels, func(l string) bool {
		return l == "reserved:world" || l == "reserved:world-ipv4" || l == "reserved:world-ipv6"
	})
}
