package query

import (
	"errors"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"
)

// Field is a filter that may be given.
type Field struct {
	Name  string
	Short string // a letter, or empty
	Help  string
	Alone string   // the value if none is given; empty: a value is needed
	Words []string // values to complete

	add func(to *list, value string) error
}

// set appends a value to a field of a filter.
type set func(f *flowpb.FlowFilter, value string) error

// both is a field that is no matter of an end.
func both(s set) func(*list, string) error {
	return func(l *list, value string) error {
		if err := s(&l.first, value); err != nil {
			return err
		}
		return s(&l.second, value)
	}
}

// ends are the three fields of something that both ends of a flow have.
func ends(name, short, help string, words []string, source, target set) []Field {
	return []Field{
		{Name: "from-" + name, Help: "source: " + help, Words: words, add: both(source)},
		{Name: "to-" + name, Help: "destination: " + help, Words: words, add: both(target)},
		{Name: name, Short: short, Help: "source or destination: " + help, Words: words,
			add: func(l *list, value string) error {
				if err := source(&l.first, value); err != nil {
					return err
				}
				return target(&l.second, value)
			}},
	}
}

// text appends a value that is checked, if check is not nil, to what list returns.
func text(list func(*flowpb.FlowFilter) *[]string, check func(string) error) set {
	return func(f *flowpb.FlowFilter, value string) error {
		if value == "" {
			return errors.New(empty)
		}
		if check != nil {
			if err := check(value); err != nil {
				return err
			}
		}
		*list(f) = append(*list(f), value)
		return nil
	}
}

// parsed appends a value as parse reads it.
func parsed[T any](list func(*flowpb.FlowFilter) *[]T, parse func(string) (T, error)) set {
	return func(f *flowpb.FlowFilter, value string) error {
		v, err := parse(value)
		if err != nil {
			return err
		}
		*list(f) = append(*list(f), v)
		return nil
	}
}

// Fields are all filters there are, in the order of help.
func Fields() []Field {
	var all []Field
	all = append(all, namedEnds()...)
	all = append(all, numberedEnds()...)
	all = append(all, namespaceFields()...)
	all = append(all, kinds()...)
	all = append(all, requests()...)
	return append(all, places()...)
}

func namedEnds() []Field {
	type filter = flowpb.FlowFilter
	var all []Field
	for _, f := range [][]Field{
		ends("pod", "", "a pod by the beginning of [NAMESPACE/]NAME; the namespace is default if none is given", nil,
			text(func(f *filter) *[]string { return &f.SourcePod }, nil),
			text(func(f *filter) *[]string { return &f.DestinationPod }, nil)),
		ends("service", "", "a Service by the beginning of [NAMESPACE/]NAME", nil,
			text(func(f *filter) *[]string { return &f.SourceService }, nil),
			text(func(f *filter) *[]string { return &f.DestinationService }, nil)),
		ends("workload", "", "a workload: [KIND/]NAME, or KIND/", nil,
			parsed(func(f *filter) *[]*flowpb.Workload { return &f.SourceWorkload }, workload),
			parsed(func(f *filter) *[]*flowpb.Workload { return &f.DestinationWorkload }, workload)),
		ends("label", "l", "a label selector, e.g. app=web or reserved:world", nil,
			text(func(f *filter) *[]string { return &f.SourceLabel }, nil),
			text(func(f *filter) *[]string { return &f.DestinationLabel }, nil)),
		ends("fqdn", "", "a DNS name, e.g. *.example.com", nil,
			text(func(f *filter) *[]string { return &f.SourceFqdn }, nil),
			text(func(f *filter) *[]string { return &f.DestinationFqdn }, nil)),
		ends("cluster", "", "a cluster's name", nil,
			text(func(f *filter) *[]string { return &f.SourceClusterName }, nil),
			text(func(f *filter) *[]string { return &f.DestinationClusterName }, nil)),
	} {
		all = append(all, f...)
	}
	return all
}

func numberedEnds() []Field {
	type filter = flowpb.FlowFilter
	var all []Field
	for _, f := range [][]Field{
		ends("ip", "", "an address or CIDR", nil,
			text(func(f *filter) *[]string { return &f.SourceIp }, address),
			text(func(f *filter) *[]string { return &f.DestinationIp }, address)),
		ends("port", "", "a port", nil,
			text(func(f *filter) *[]string { return &f.SourcePort }, port),
			text(func(f *filter) *[]string { return &f.DestinationPort }, port)),
		ends("identity", "", "an identity: a number, or the name of a reserved one", ReservedIdentities(),
			parsed(func(f *filter) *[]uint32 { return &f.SourceIdentity }, identity),
			parsed(func(f *filter) *[]uint32 { return &f.DestinationIdentity }, identity)),
	} {
		all = append(all, f...)
	}
	return append(all, Field{Name: "snat-ip", Help: "the address that replaces the source's, or a CIDR",
		add: both(text(func(f *filter) *[]string { return &f.SourceIpXlated }, address))})
}

// namespaceFields complete the names of pods and Services.
func namespaceFields() []Field {
	ns := func(names func(*list) *[]string) func(*list, string) error {
		return func(l *list, value string) error {
			if value == "" || strings.Contains(value, "/") {
				return errors.New("want the name of a namespace")
			}
			*names(l) = append(*names(l), value)
			return nil
		}
	}
	all := func(names func(*list) *[]string) func(*list, string) error {
		return func(l *list, _ string) error {
			*names(l) = append(*names(l), "")
			return nil
		}
	}
	source := func(l *list) *[]string { return &l.source }
	target := func(l *list) *[]string { return &l.target }
	either := func(l *list) *[]string { return &l.either }
	return []Field{
		{Name: "from-namespace", Help: "source: a namespace", add: ns(source)},
		{Name: "to-namespace", Help: "destination: a namespace", add: ns(target)},
		{Name: "namespace", Short: "n", Help: "source or destination: a namespace", add: ns(either)},
		{Name: "from-all-namespaces", Help: "source: a pod of any namespace", Alone: "true", add: all(source)},
		{Name: "to-all-namespaces", Help: "destination: a pod of any namespace", Alone: "true", add: all(target)},
		{Name: "all-namespaces", Short: "A", Help: "source or destination: a pod of any namespace", Alone: "true",
			add: all(either)},
	}
}

func kinds() []Field {
	type filter = flowpb.FlowFilter
	version := parsed(func(f *filter) *[]flowpb.IPVersion { return &f.IpVersion }, ipVersion)
	fixed := func(value string, s set) set { return func(f *filter, _ string) error { return s(f, value) } }
	encrypted := func(value bool) func(*list, string) error {
		return both(func(f *filter, _ string) error { f.Encrypted = append(f.Encrypted, value); return nil })
	}
	return []Field{
		{Name: "protocol", Help: "a protocol: " + strings.Join(protocols(), ", "), Words: protocols(),
			add: both(text(func(f *filter) *[]string { return &f.Protocol }, protocol))},
		{Name: "verdict", Help: "a verdict: " + strings.Join(verdicts(), ", "), Words: verdicts(),
			add: both(parsed(func(f *filter) *[]flowpb.Verdict { return &f.Verdict }, verdict))},
		{Name: "drop-reason-desc", Help: "a reason of drops, e.g. POLICY_DENIED", Words: dropReasons(),
			add: both(parsed(func(f *filter) *[]flowpb.DropReason { return &f.DropReasonDesc }, dropReason))},
		{Name: "type", Short: "t", Help: "a kind of events, TYPE[:SUBTYPE]: " + strings.Join(typeNames(), ", ") +
			"; e.g. trace:to-endpoint", Words: typeWords(),
			add: both(parsed(func(f *filter) *[]*flowpb.EventTypeFilter { return &f.EventType }, eventType))},
		{Name: "tcp-flags", Help: "TCP flags that are all set, e.g. syn,ack",
			add: both(parsed(func(f *filter) *[]*flowpb.TCPFlags { return &f.TcpFlags }, tcpFlags))},
		{Name: "reply", Help: "replies, or with =false requests", Alone: "true", Words: []string{"true", "false"},
			add: both(parsed(func(f *filter) *[]bool { return &f.Reply }, boolean))},
		{Name: "traffic-direction", Help: "ingress or egress", Words: []string{"ingress", "egress"},
			add: both(parsed(func(f *filter) *[]flowpb.TrafficDirection { return &f.TrafficDirection }, direction))},
		{Name: "ip-version", Help: "v4, v6 or none", Words: []string{"v4", "v6", "none"}, add: both(version)},
		{Name: "ipv4", Short: "4", Help: "IPv4", Alone: "true", add: both(fixed("v4", version))},
		{Name: "ipv6", Short: "6", Help: "IPv6", Alone: "true", add: both(fixed("v6", version))},
		{Name: "encrypted", Help: "encrypted flows", Alone: "true", add: encrypted(true)},
		{Name: "unencrypted", Help: "flows that are not encrypted", Alone: "true", add: encrypted(false)},
	}
}

func requests() []Field {
	type filter = flowpb.FlowFilter
	return []Field{
		{Name: "http-status", Help: "an HTTP status, e.g. 404 or 5+",
			add: both(text(func(f *filter) *[]string { return &f.HttpStatusCode }, httpStatus))},
		{Name: "http-method", Help: "an HTTP method, e.g. GET",
			add: both(text(func(f *filter) *[]string { return &f.HttpMethod }, nil))},
		{Name: "http-path", Help: "a regular expression of HTTP paths",
			add: both(text(func(f *filter) *[]string { return &f.HttpPath }, expression))},
		{Name: "http-url", Help: "a regular expression of HTTP URLs",
			add: both(text(func(f *filter) *[]string { return &f.HttpUrl }, expression))},
		{Name: "http-header", Help: "an HTTP header, NAME:VALUE",
			add: both(parsed(func(f *filter) *[]*flowpb.HTTPHeader { return &f.HttpHeader }, httpHeader))},
		{Name: "dns-query", Help: "a regular expression of names that DNS is asked for",
			add: both(text(func(f *filter) *[]string { return &f.DnsQuery }, expression))},
		{Name: "trace-id", Help: "a trace ID", add: both(text(func(f *filter) *[]string { return &f.TraceId }, nil))},
		{Name: "ip-trace-id", Help: "an IP trace ID",
			add: both(parsed(func(f *filter) *[]uint64 { return &f.IpTraceId }, positive))},
	}
}

func places() []Field {
	type filter = flowpb.FlowFilter
	return []Field{
		{Name: "uuid", Help: "the flow with this UUID",
			add: both(text(func(f *filter) *[]string { return &f.Uuid }, nil))},
		{Name: "node-name", Help: "a node that reports, e.g. k8s* or CLUSTER/NAME",
			add: both(text(func(f *filter) *[]string { return &f.NodeName }, nil))},
		{Name: "node-label", Help: "a label selector of nodes that report",
			add: both(text(func(f *filter) *[]string { return &f.NodeLabels }, nil))},
		{Name: "interface", Help: "a device where it was seen, e.g. eth0",
			add: both(parsed(func(f *filter) *[]*flowpb.NetworkInterface { return &f.Interface }, device))},
		{Name: "cel-expression", Help: "a CEL expression", add: both(func(f *filter, value string) error {
			if value == "" {
				return errors.New(empty)
			}
			if f.Experimental == nil {
				f.Experimental = &flowpb.FlowFilter_Experimental{}
			}
			f.Experimental.CelExpression = append(f.Experimental.CelExpression, value)
			return nil
		})},
	}
}
