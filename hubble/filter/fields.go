package filter

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"
)

func (c *compiler) packet(f *flowpb.FlowFilter) {
	add(c, "protocol", f.GetProtocol(), protocol)
	add(c, "source_port", f.GetSourcePort(), port(func(p ports) uint32 { return p.GetSourcePort() }))
	add(c, "destination_port", f.GetDestinationPort(), port(func(p ports) uint32 { return p.GetDestinationPort() }))
	add(c, "tcp_flags", f.GetTcpFlags(), tcpFlags)
	equal(c, "ip_version", f.GetIpVersion(), func(f *flowpb.Flow) flowpb.IPVersion { return f.GetIP().GetIpVersion() })
	equal(c, "encrypted", f.GetEncrypted(), func(f *flowpb.Flow) bool { return f.GetIP().GetEncrypted() })
	equal(c, "ip_trace_id", f.GetIpTraceId(), func(f *flowpb.Flow) uint64 { return f.GetIpTraceId().GetTraceId() })
	add(c, "interface", f.GetInterface(), func(want *flowpb.NetworkInterface) (Match, error) {
		return func(f *flowpb.Flow) bool {
			i := f.GetInterface()
			return i != nil && (want.GetIndex() == 0 || want.GetIndex() == i.GetIndex()) &&
				(want.GetName() == "" || want.GetName() == i.GetName())
		}, nil
	})
}

func (c *compiler) verdicts(f *flowpb.FlowFilter) {
	equal(c, "verdict", f.GetVerdict(), (*flowpb.Flow).GetVerdict)
	equal(c, "drop_reason_desc", f.GetDropReasonDesc(), (*flowpb.Flow).GetDropReasonDesc)
	equal(c, "traffic_direction", f.GetTrafficDirection(), (*flowpb.Flow).GetTrafficDirection)
	add(c, "event_type", f.GetEventType(), func(want *flowpb.EventTypeFilter) (Match, error) {
		return func(f *flowpb.Flow) bool {
			t := f.GetEventType()
			return t != nil && (want.GetType() == 0 || want.GetType() == t.GetType()) &&
				(!want.GetMatchSubType() || want.GetSubType() == t.GetSubType())
		}, nil
	})
	add(c, "reply", f.GetReply(), func(want bool) (Match, error) {
		return func(f *flowpb.Flow) bool {
			// Clients ask for reply=false to see drops, of which the direction is often unknown.
			unknown := f.GetIsReply() == nil && f.GetVerdict() != flowpb.Verdict_DROPPED
			return !unknown && f.GetIsReply().GetValue() == want
		}, nil
	})
}

func (c *compiler) others(f *flowpb.FlowFilter) {
	equal(c, "uuid", f.GetUuid(), (*flowpb.Flow).GetUuid)
	equal(c, "trace_id", f.GetTraceId(), func(f *flowpb.Flow) string {
		return f.GetTraceContext().GetParent().GetTraceId()
	})
	c.expressions(f.GetExperimental().GetCelExpression())
}

func protocol(name string) (Match, error) {
	l4 := (*flowpb.Flow).GetL4
	known := map[string]Match{
		"tcp":    func(f *flowpb.Flow) bool { return l4(f).GetTCP() != nil },
		"udp":    func(f *flowpb.Flow) bool { return l4(f).GetUDP() != nil },
		"sctp":   func(f *flowpb.Flow) bool { return l4(f).GetSCTP() != nil },
		"icmp":   func(f *flowpb.Flow) bool { return l4(f).GetICMPv4() != nil || l4(f).GetICMPv6() != nil },
		"icmpv4": func(f *flowpb.Flow) bool { return l4(f).GetICMPv4() != nil },
		"icmpv6": func(f *flowpb.Flow) bool { return l4(f).GetICMPv6() != nil },
		"vrrp":   func(f *flowpb.Flow) bool { return l4(f).GetVRRP() != nil },
		"igmp":   func(f *flowpb.Flow) bool { return l4(f).GetIGMP() != nil },
		"dns":    func(f *flowpb.Flow) bool { return f.GetL7().GetDns() != nil },
		"http":   func(f *flowpb.Flow) bool { return f.GetL7().GetHttp() != nil },
		"kafka":  func(f *flowpb.Flow) bool { return f.GetL7().GetKafka() != nil },
	}
	m, ok := known[strings.ToLower(name)]
	if !ok {
		return nil, fmt.Errorf("there is no protocol %q", name)
	}
	return m, nil
}

// ports is a protocol with ports.
type ports interface {
	GetSourcePort() uint32
	GetDestinationPort() uint32
}

func port(of func(ports) uint32) func(string) (Match, error) {
	return func(text string) (Match, error) {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%q is not a port, 0 to 65535", text)
		}
		return func(f *flowpb.Flow) bool {
			l4 := f.GetL4()
			switch {
			case l4.GetTCP() != nil:
				return of(l4.GetTCP()) == uint32(n)
			case l4.GetUDP() != nil:
				return of(l4.GetUDP()) == uint32(n)
			case l4.GetSCTP() != nil:
				return of(l4.GetSCTP()) == uint32(n)
			}
			return false
		}, nil
	}
}

// tcpFlags matches packets that have all flags of want, and maybe others.
func tcpFlags(want *flowpb.TCPFlags) (Match, error) {
	return func(f *flowpb.Flow) bool {
		have := f.GetL4().GetTCP().GetFlags()
		return have != nil && flagBits(want)&^flagBits(have) == 0
	}, nil
}

func flagBits(f *flowpb.TCPFlags) (bits int) {
	for i, set := range []bool{
		f.GetFIN(), f.GetSYN(), f.GetRST(), f.GetPSH(), f.GetACK(), f.GetURG(), f.GetECE(), f.GetCWR(), f.GetNS(),
	} {
		if set {
			bits |= 1 << i
		}
	}
	return bits
}

// fqdn matches names by a pattern, in which * stands for any part of a name.
func fqdn(of func(*flowpb.Flow) []string) func(string) (Match, error) {
	return func(pattern string) (Match, error) {
		re, err := namePattern(pattern)
		if err != nil {
			return nil, err
		}
		return func(f *flowpb.Flow) bool {
			for _, name := range of(f) {
				if re.MatchString(name) {
					return true
				}
			}
			return false
		}, nil
	}
}

// nodeName matches "cluster/node", "cluster/", or "node" in any cluster.
func nodeName(pattern string) (Match, error) {
	cluster, node, found := strings.Cut(pattern, "/")
	if !found {
		cluster, node = "", pattern
	}
	switch {
	case pattern == "":
		return nil, errors.New("the pattern is empty")
	case strings.Contains(node, "/"):
		return nil, fmt.Errorf("%q has more than one slash", pattern)
	}
	var parts [2]*regexp.Regexp
	for i, p := range []string{cluster, node} {
		if p == "" {
			p = "*"
		}
		var err error
		if parts[i], err = namePattern(p); err != nil {
			return nil, err
		}
	}
	return func(f *flowpb.Flow) bool {
		cluster, node, found := strings.Cut(f.GetNodeName(), "/")
		if !found {
			cluster, node = "default", cluster
		}
		return node != "" && parts[0].MatchString(cluster) && parts[1].MatchString(node)
	}, nil
}

func namePattern(pattern string) (*regexp.Regexp, error) {
	p := strings.ToLower(strings.TrimSuffix(strings.TrimSpace(pattern), "."))
	if p == "" {
		return nil, errors.New("the pattern is empty")
	}
	if i := strings.IndexFunc(p, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_.*", r)
	}); i >= 0 || strings.HasSuffix(p, ".") {
		return nil, fmt.Errorf("%q is not a pattern of DNS names", pattern)
	}
	return regexp.Compile("^" + strings.ReplaceAll(regexp.QuoteMeta(p), `\*`, "[-_.0-9a-z]*") + "$")
}
