package ui

import (
	"cmp"
	"encoding/json"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/hubble/consumer"
	"myelin/hubble/printer"
)

// row is a flow as the table shows it. It is an array in JSON, in the order of web/src/model.ts.
type row struct {
	seq              uint64
	time             int64 // milliseconds since 1970
	verdict          string
	from, to         string
	fromPort, toPort uint32
	protocol         string
	kind             string // printer.Type
	summary          string
	reply            bool
	node             string
	rule             string
}

// MarshalJSON implements json.Marshaler.
func (r *row) MarshalJSON() ([]byte, error) {
	reply := 0
	if r.reply {
		reply = 1
	}
	return json.Marshal([]any{r.seq, r.time, r.verdict, r.from, r.fromPort, r.to, r.toPort, r.protocol, r.kind,
		r.summary, reply, r.node, r.rule})
}

func newRow(f *flowpb.Flow, seq uint64) row {
	from, to := printer.Ports(f)
	ip := f.GetIP()
	return row{
		seq: seq, time: f.GetTime().AsTime().UnixMilli(), verdict: f.GetVerdict().String(),
		from: endName(f.GetSource(), f.GetSourceService(), f.GetSourceNames(),
			cmp.Or(ip.GetSource(), f.GetEthernet().GetSource())),
		to: endName(f.GetDestination(), f.GetDestinationService(), f.GetDestinationNames(),
			cmp.Or(ip.GetDestination(), f.GetEthernet().GetDestination())),
		fromPort: from, toPort: to, protocol: printer.Protocol(f), kind: printer.Type(f),
		summary: printer.Printable(f.GetSummary()), reply: f.GetIsReply().GetValue(), node: f.GetNodeName(),
		rule: rule(f),
	}
}

func endName(e *flowpb.Endpoint, s *flowpb.Service, names []string, address string) string {
	return printer.Printable(printer.Name(e, s, names, address))
}

// denied reports whether a flow did not reach its destination.
func denied(f *flowpb.Flow) bool {
	return f.GetVerdict() == flowpb.Verdict_DROPPED || f.GetVerdict() == flowpb.Verdict_ERROR
}

// rule returns the rule that decided about a flow by its place, which Myelin's agents report, else the meaning of its
// drop reason, or the policies that Hubble names.
func rule(f *flowpb.Flow) string {
	extension := consumer.Extension(f)
	text := func(key string) string { return printer.Printable(extension[key].GetStringValue()) }
	var rules []string
	for _, r := range []struct{ direction, rule string }{{"egress", text("egressRule")},
		{"ingress", text("ingressRule")}} {
		if r.rule != "" {
			rules = append(rules, r.direction+": "+r.rule)
		}
	}
	all := strings.Join(rules, "; ")
	if denied(f) {
		return cmp.Or(text("policy"), all, strings.Join(printer.Policies(f), ", "), printer.Reason(f))
	}
	return cmp.Or(all, strings.Join(printer.Policies(f), ", "))
}

// contains reports whether what the row shows has a text, in lower case, in it.
func (r *row) contains(text string) bool {
	for _, cell := range []string{r.from, r.to, r.verdict, r.protocol, r.kind, r.summary, r.node, r.rule} {
		if strings.Contains(strings.ToLower(cell), text) {
			return true
		}
	}
	return false
}
