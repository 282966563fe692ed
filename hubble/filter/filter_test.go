package filter

import (
	"strings"
	"testing"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// sample has a value in each field that filters look at.
func sample() *flowpb.Flow {
	return &flowpb.Flow{
		Uuid: "u1", NodeName: "default/node1", NodeLabels: []string{"zone=a", "kubernetes.io/os=linux"},
		Verdict: flowpb.Verdict_DROPPED, DropReasonDesc: flowpb.DropReason_POLICY_DENIED,
		IP: &flowpb.IP{Source: "10.0.1.2", Destination: "fd00::1", SourceXlated: "192.0.2.1",
			IpVersion: flowpb.IPVersion_IPv4},
		L4: &flowpb.Layer4{Protocol: &flowpb.Layer4_TCP{TCP: &flowpb.TCP{SourcePort: 40000, DestinationPort: 80,
			Flags: &flowpb.TCPFlags{SYN: true, ACK: true}}}},
		L7: &flowpb.Layer7{Record: &flowpb.Layer7_Http{Http: &flowpb.HTTP{Code: 404, Method: "GET",
			Url: "http://web/a/b?c", Headers: []*flowpb.HTTPHeader{{Key: "X", Value: "y"}}}}},
		Source: &flowpb.Endpoint{Identity: 70000, Namespace: "demo", PodName: "web-1", ClusterName: "default",
			Labels:    []string{"k8s:app=web", "k8s:io.kubernetes.pod.namespace=demo"},
			Workloads: []*flowpb.Workload{{Kind: "Deployment", Name: "web"}}},
		Destination: &flowpb.Endpoint{Identity: 1, Labels: []string{"reserved:host"}, ClusterName: "other",
			Namespace: "default", PodName: "db", Workloads: []*flowpb.Workload{{Kind: "StatefulSet", Name: "db"}}},
		SourceNames: []string{"a.example.com"}, DestinationNames: []string{"b.example.com"},
		SourceService:      &flowpb.Service{Namespace: "demo", Name: "websvc"},
		DestinationService: &flowpb.Service{Namespace: "default", Name: "dbsvc"},
		EventType:          &flowpb.CiliumEventType{Type: 1, SubType: 133},
		TrafficDirection:   flowpb.TrafficDirection_INGRESS,
		IsReply:            wrapperspb.Bool(false),
		Interface:          &flowpb.NetworkInterface{Index: 7, Name: "eth0"},
		TraceContext:       &flowpb.TraceContext{Parent: &flowpb.TraceParent{TraceId: "t1"}},
		IpTraceId:          &flowpb.IPTraceID{TraceId: 5},
	}
}

// field is a field's name in JSON with values that match the sample, that don't, and that are invalid.
type field struct {
	name     string
	yes, no  []string
	rejected []string
}

func fields() []field {
	return []field{
		{"uuid", []string{`"u1"`}, []string{`"u2"`}, nil},
		{"source_ip", []string{`"10.0.1.2"`, `"10.0.0.0/16"`}, []string{`"10.0.1.3"`, `"fd00::/8"`},
			[]string{`"x"`, `"10.0.0.0/33"`, `""`}},
		{"source_ip_xlated", []string{`"192.0.2.1"`}, []string{`"10.0.1.2"`}, []string{`"x"`}},
		{"destination_ip", []string{`"fd00::1"`, `"fd00:0::1"`, `"fd00::/64"`}, []string{`"10.0.1.2"`},
			[]string{`"x/1"`}},
		{"source_pod", []string{`"demo/web"`, `"demo/"`, `"/web"`}, []string{`"web"`, `"demo/db"`}, []string{`""`}},
		{"destination_pod", []string{`"db"`, `"default/"`}, []string{`"demo/"`}, []string{`""`}},
		{"source_fqdn", []string{`"*.example.com"`, `"A.example.com."`}, []string{`"b.*"`}, []string{`""`, `"a b"`}},
		{"destination_fqdn", []string{`"b.example.com"`}, []string{`"example.com"`}, []string{`"a.."`}},
		{"source_label", []string{`"app=web"`, `"k8s:app in (web,x),!other"`, `"any:app"`,
			`"k8s:io.kubernetes.pod.namespace=demo, app!=db"`}, []string{`"reserved:app"`, `"app=db"`, `"!app"`},
			[]string{`"app in ("`, `"a=b=c"`}},
		{"destination_label", []string{`"reserved:host"`, `"host"`}, []string{`"k8s:host"`}, []string{`"="`}},
		{"source_service", []string{`"demo/web"`}, []string{`"web"`}, []string{`""`}},
		{"destination_service", []string{`"dbsvc"`}, []string{`"demo/"`}, []string{`""`}},
		{"source_workload", []string{`{"kind":"Deployment"}`, `{"name":"web"}`}, []string{`{"name":"we"}`}, nil},
		{"destination_workload", []string{`{"kind":"StatefulSet","name":"db"}`}, []string{`{"kind":"Pod"}`}, nil},
		{"source_cluster_name", []string{`"default"`}, []string{`"other"`}, []string{`""`}},
		{"destination_cluster_name", []string{`"other"`}, []string{`"default"`}, []string{`""`}},
		{"traffic_direction", []string{`"INGRESS"`}, []string{`"EGRESS"`}, nil},
		{"verdict", []string{`"DROPPED"`}, []string{`"FORWARDED"`}, nil},
		{"drop_reason_desc", []string{`"POLICY_DENIED"`}, []string{`"POLICY_DENY"`}, nil},
		{"interface", []string{`{"name":"eth0"}`, `{"index":7}`}, []string{`{"name":"eth1"}`, `{"index":8}`}, nil},
		{"event_type", []string{`{"type":1}`, `{"type":1,"match_sub_type":true,"sub_type":133}`, `{}`},
			[]string{`{"type":4}`, `{"type":1,"match_sub_type":true,"sub_type":0}`}, nil},
		{"http_status_code", []string{`"404"`, `"4+"`, `"40+"`}, []string{`"5+"`, `"405"`}, []string{`"4"`, `"999"`}},
		{"protocol", []string{`"tcp"`, `"HTTP"`}, []string{`"udp"`, `"icmp"`, `"dns"`}, []string{`"x"`}},
		{"source_port", []string{`"40000"`}, []string{`"80"`}, []string{`"x"`, `"65536"`}},
		{"destination_port", []string{`"80"`}, []string{`"81"`}, []string{`"-1"`}},
		{"reply", []string{`false`}, []string{`true`}, nil},
		{"dns_query", nil, []string{`".*"`}, []string{`"("`}},
		{"source_identity", []string{`70000`}, []string{`1`}, nil},
		{"destination_identity", []string{`1`}, []string{`70000`}, nil},
		{"http_method", []string{`"get"`}, []string{`"PUT"`}, nil},
		{"http_path", []string{`"^/a/b$"`}, []string{`"c"`}, []string{`"["`}},
		{"http_url", []string{`"b.c"`}, []string{`"^/a"`}, []string{`"["`}},
		{"http_header", []string{`{"key":"X","value":"y"}`}, []string{`{"key":"X","value":"z"}`}, nil},
		{"tcp_flags", []string{`{"SYN":true}`, `{"SYN":true,"ACK":true}`}, []string{`{"FIN":true}`}, nil},
		{"node_name", []string{`"node1"`, `"default/"`, `"default/no*"`}, []string{`"node"`, `"other/node1"`},
			[]string{`""`, `"a/b/c"`}},
		{"node_labels", []string{`"zone=a"`, `"kubernetes.io/os"`}, []string{`"zone=b"`}, []string{`"="`}},
		{"ip_version", []string{`"IPv4"`}, []string{`"IPv6"`}, nil},
		{"trace_id", []string{`"t1"`}, []string{`"t2"`}, nil},
		{"ip_trace_id", []string{`5`}, []string{`6`}, nil},
		{"encrypted", []string{`false`}, []string{`true`}, nil},
	}
}

func parse(t *testing.T, name string, values ...string) *flowpb.FlowFilter {
	t.Helper()
	f := &flowpb.FlowFilter{}
	if err := protojson.Unmarshal([]byte(`{"`+name+`":[`+strings.Join(values, ",")+`]}`), f); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestFields checks each field of the message, so that none that a new version brings is ignored.
func TestFields(t *testing.T) {
	tested := map[string]bool{"experimental": true}
	for _, tt := range fields() {
		tested[tt.name] = true
		for _, v := range tt.yes {
			check(t, sample(), true, parse(t, tt.name, v))
		}
		for _, v := range tt.no {
			check(t, sample(), false, parse(t, tt.name, v))
			check(t, &flowpb.Flow{Verdict: flowpb.Verdict_TRACED}, v == `"!app"`, parse(t, tt.name, v))
		}
		if len(tt.yes) > 0 && len(tt.no) > 0 { // values are alternatives
			check(t, sample(), true, parse(t, tt.name, tt.no[0], tt.yes[0]))
		}
		for _, v := range tt.rejected {
			_, err := Compile(nil, []*flowpb.FlowFilter{{}, parse(t, tt.name, v)})
			want := "blacklist[1]." + tt.name + "[0]: "
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %s: %v, want %s", tt.name, v, err, want)
			}
		}
	}
	all := (&flowpb.FlowFilter{}).ProtoReflect().Descriptor().Fields()
	for i := range all.Len() {
		if name := string(all.Get(i).Name()); !tested[name] {
			t.Errorf("%s is not tested", name)
		}
	}
}

func check(t *testing.T, f *flowpb.Flow, want bool, filters ...*flowpb.FlowFilter) {
	t.Helper()
	m, err := Compile(filters, nil)
	if err != nil {
		t.Errorf("%s: %v", prototext.Format(filters[0]), err)
	} else if m(f) != want {
		t.Errorf("%s: %v, want %v", prototext.Format(filters[0]), !want, want)
	}
}

func TestLists(t *testing.T) {
	yes := &flowpb.FlowFilter{Verdict: []flowpb.Verdict{flowpb.Verdict_DROPPED}, SourcePod: []string{"demo/"}}
	no := &flowpb.FlowFilter{Verdict: []flowpb.Verdict{flowpb.Verdict_DROPPED}, SourcePod: []string{"other/"}}
	for _, tt := range []struct {
		white, black []*flowpb.FlowFilter
		want         bool
	}{
		{[]*flowpb.FlowFilter{no, yes}, nil, true},
		{[]*flowpb.FlowFilter{no}, nil, false},
		{[]*flowpb.FlowFilter{{}}, nil, true},
		{nil, []*flowpb.FlowFilter{no}, true},
		{nil, []*flowpb.FlowFilter{no, yes}, false},
		{[]*flowpb.FlowFilter{yes}, []*flowpb.FlowFilter{yes}, false},
	} {
		m, err := Compile(tt.white, tt.black)
		if err != nil || m(sample()) != tt.want {
			t.Errorf("%v minus %v: %v, want %v", tt.white, tt.black, err, tt.want)
		}
	}
	if m, err := Compile(nil, nil); m != nil || err != nil {
		t.Errorf("no filters: %v", err)
	}
}

func TestReplyOfDrops(t *testing.T) {
	want := parse(t, "reply", "false")
	check(t, &flowpb.Flow{Verdict: flowpb.Verdict_DROPPED}, true, want)
	check(t, &flowpb.Flow{Verdict: flowpb.Verdict_FORWARDED}, false, want)
}

func TestCEL(t *testing.T) {
	compile := func(list ...string) (Match, error) {
		return Compile(nil, []*flowpb.FlowFilter{{
			Experimental: &flowpb.FlowFilter_Experimental{CelExpression: list},
		}})
	}
	dropped := &flowpb.Flow{Verdict: flowpb.Verdict_DROPPED, Source: &flowpb.Endpoint{Labels: []string{"k8s:app=web"}}}
	for text, want := range map[string]bool{
		"_flow.verdict == Verdict.DROPPED":                          true,
		"_flow.verdict == Verdict.FORWARDED":                        false,
		`_flow.source.labels.exists(l, l == "k8s:app=web")`:         true,
		"has(_flow.l4) && _flow.l4.TCP.destination_port == uint(1)": false,
	} {
		match, err := compile("false", text)
		if err != nil || match(dropped) == want { // of a blacklist
			t.Errorf("%s: %v, want %v", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"_flow.nothing": "undefined field 'nothing'", "_flow.uuid": "of type string, want bool", "1 +": "1 +",
	} {
		_, err := compile(text)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "blacklist[0].experimental.cel_expression[0]") {
			t.Errorf("%s: %v", text, err)
		}
	}
	match, err := compile("1 / (1 - int(_flow.socket_cookie)) > 0")
	if err != nil || !match(&flowpb.Flow{SocketCookie: 1}) || match(&flowpb.Flow{}) {
		t.Error("a division by zero is no match", err)
	}
	const costly = "_flow.node_labels.all(a, _flow.node_labels.all(b, _flow.node_labels.all(c, a != b + c)))"
	if match, err = compile(costly); err != nil || !match(&flowpb.Flow{NodeLabels: make([]string, 1000)}) {
		t.Error("an expression that costs too much is no match", err)
	}
}
