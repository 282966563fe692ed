package query

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// parse adds filters as a command line does: "--not --pod=a --ipv4".
func parse(line string) (*Filters, error) {
	f := &Filters{}
	for _, word := range strings.Fields(line) {
		name, value, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
		var err error
		if name == "not" {
			err = f.Not()
		} else {
			err = f.Add(name, value)
		}
		if err != nil {
			return nil, err
		}
	}
	return f, nil
}

// filters reads filters of JSON: an object each.
func filters(t *testing.T, texts []string) (all []*flowpb.FlowFilter) {
	for _, text := range texts {
		f := &flowpb.FlowFilter{}
		if err := protojson.Unmarshal([]byte(text), f); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		all = append(all, f)
	}
	return all
}

func same(a, b []*flowpb.FlowFilter) bool {
	return slices.EqualFunc(a, b, func(x, y *flowpb.FlowFilter) bool { return proto.Equal(x, y) })
}

// wanted has filters for each flag.
func wanted() map[string][]string {
	return map[string][]string{
		"":                      nil,
		"--from-pod=a/b":        {`{"source_pod":["a/b"]}`},
		"--to-pod=b --to-pod=c": {`{"destination_pod":["b","c"]}`},
		"--pod=a/b":             {`{"source_pod":["a/b"]}`, `{"destination_pod":["a/b"]}`},
		"--pod=a --port=80": {
			`{"source_pod":["a"],"source_port":["80"]}`,
			`{"destination_pod":["a"],"destination_port":["80"]}`},
		"--namespace=x":                   {`{"source_pod":["x/"]}`, `{"destination_pod":["x/"]}`},
		"--namespace=x --pod=a":           {`{"source_pod":["x/a"]}`, `{"destination_pod":["x/a"]}`},
		"--from-namespace=x --to-pod=b":   {`{"source_pod":["x/"],"destination_pod":["b"]}`},
		"--to-namespace=x":                {`{"destination_pod":["x/"]}`},
		"--to-namespace=x --to-service=s": {`{"destination_service":["x/s"]}`},
		"--all-namespaces --pod=a":        {`{"source_pod":["/a"]}`, `{"destination_pod":["/a"]}`},
		"--from-all-namespaces":           {`{"source_pod":["/"]}`},
		"--to-all-namespaces":             {`{"destination_pod":["/"]}`},
		"--from-service=s":                {`{"source_service":["s"]}`},
		"--to-service=s":                  {`{"destination_service":["s"]}`},
		"--service=s":                     {`{"source_service":["s"]}`, `{"destination_service":["s"]}`},
		"--from-workload=Deployment/w":    {`{"source_workload":[{"kind":"Deployment","name":"w"}]}`},
		"--to-workload=w":                 {`{"destination_workload":[{"name":"w"}]}`},
		"--workload=Job/": {
			`{"source_workload":[{"kind":"Job"}]}`,
			`{"destination_workload":[{"kind":"Job"}]}`},
		"--from-label=a=b": {`{"source_label":["a=b"]}`},
		"--to-label=a":     {`{"destination_label":["a"]}`},
		"--label=reserved:world": {
			`{"source_label":["reserved:world"]}`,
			`{"destination_label":["reserved:world"]}`},
		"--from-fqdn=*.a":  {`{"source_fqdn":["*.a"]}`},
		"--to-fqdn=*.a":    {`{"destination_fqdn":["*.a"]}`},
		"--fqdn=*.a":       {`{"source_fqdn":["*.a"]}`, `{"destination_fqdn":["*.a"]}`},
		"--from-cluster=c": {`{"source_cluster_name":["c"]}`},
		"--to-cluster=c":   {`{"destination_cluster_name":["c"]}`},
		"--cluster=c": {
			`{"source_cluster_name":["c"]}`,
			`{"destination_cluster_name":["c"]}`},
	}
}

func wantedNumbers() map[string][]string {
	return map[string][]string{
		"--from-ip=10.0.0.0/8":           {`{"source_ip":["10.0.0.0/8"]}`},
		"--to-ip=fd00::1":                {`{"destination_ip":["fd00::1"]}`},
		"--ip=1.1.1.1":                   {`{"source_ip":["1.1.1.1"]}`, `{"destination_ip":["1.1.1.1"]}`},
		"--snat-ip=1.1.1.1":              {`{"source_ip_xlated":["1.1.1.1"]}`},
		"--from-port=1":                  {`{"source_port":["1"]}`},
		"--to-port=53":                   {`{"destination_port":["53"]}`},
		"--port=53":                      {`{"source_port":["53"]}`, `{"destination_port":["53"]}`},
		"--from-identity=world":          {`{"source_identity":[2]}`},
		"--to-identity=1234":             {`{"destination_identity":[1234]}`},
		"--identity=reserved:host":       {`{"source_identity":[1]}`, `{"destination_identity":[1]}`},
		"--protocol=tcp --protocol=udp":  {`{"protocol":["tcp","udp"]}`},
		"--verdict=dropped":              {`{"verdict":["DROPPED"]}`},
		"--drop-reason-desc=POLICY_DENY": {`{"drop_reason_desc":["POLICY_DENY"]}`},
		"--type=drop":                    {`{"event_type":[{"type":1}]}`},
		"--type=trace:to-stack":          {`{"event_type":[{"type":4,"match_sub_type":true,"sub_type":3}]}`},
		"--type=trace:to-crypto":         {`{"event_type":[{"type":4,"match_sub_type":true,"sub_type":13}]}`},
		"--type=l7 --type=1:133": {
			`{"event_type":[{"type":129},{"type":1,"match_sub_type":true,"sub_type":133}]}`},
		"--tcp-flags=syn,ack":        {`{"tcp_flags":[{"SYN":true,"ACK":true}]}`},
		"--reply=true":               {`{"reply":[true]}`},
		"--reply=false":              {`{"reply":[false]}`},
		"--traffic-direction=egress": {`{"traffic_direction":["EGRESS"]}`},
		"--ip-version=none":          {`{"ip_version":["IP_NOT_USED"]}`},
		"--ipv4":                     {`{"ip_version":["IPv4"]}`},
		"--ipv6":                     {`{"ip_version":["IPv6"]}`},
		"--encrypted":                {`{"encrypted":[true]}`},
		"--unencrypted":              {`{"encrypted":[false]}`},
		"--http-status=5+":           {`{"http_status_code":["5+"]}`},
		"--http-method=GET":          {`{"http_method":["GET"]}`},
		"--http-path=/a.*":           {`{"http_path":["/a.*"]}`},
		"--http-url=http://a":        {`{"http_url":["http://a"]}`},
		"--http-header=a:b":          {`{"http_header":[{"key":"a","value":"b"}]}`},
		"--dns-query=a.*":            {`{"dns_query":["a.*"]}`},
		"--trace-id=t":               {`{"trace_id":["t"]}`},
		"--ip-trace-id=7":            {`{"ip_trace_id":["7"]}`},
		"--uuid=u":                   {`{"uuid":["u"]}`},
		"--node-name=n*":             {`{"node_name":["n*"]}`},
		"--node-label=a=b":           {`{"node_labels":["a=b"]}`},
		"--interface=eth0":           {`{"interface":[{"name":"eth0"}]}`},
		"--cel-expression=true":      {`{"experimental":{"cel_expression":["true"]}}`},
	}
}

func TestFilterOfEachFlag(t *testing.T) {
	tested, all := map[string]bool{}, wanted()
	maps.Copy(all, wantedNumbers())
	for line, texts := range all {
		for _, word := range strings.Fields(line) {
			name, _, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
			tested[name] = true
		}
		f, err := parse(line)
		if err != nil {
			t.Error(err)
			continue
		}
		allow, deny, err := f.Lists()
		if want := filters(t, texts); err != nil || !same(allow, want) || len(deny) > 0 {
			t.Errorf("%s: %v, not %v, %v; want %v", line, allow, deny, err, want)
		}
	}
	for _, field := range Fields() {
		if !tested[field.Name] {
			t.Errorf("--%s has no test", field.Name)
		}
	}
}

func TestNotReversesTheNextFilter(t *testing.T) {
	f, err := parse("--protocol=tcp --not --port=80 --not --namespace=x --from-pod=a")
	if err != nil {
		t.Fatal(err)
	}
	allow, deny, err := f.Lists()
	if want := filters(t, []string{
		`{"protocol":["tcp"],"source_pod":["a"]}`}); err != nil || !same(allow, want) {
		t.Errorf("allowed %v, %v", allow, err)
	}
	want := filters(t, []string{`{"source_port":["80"],"source_pod":["x/"]}`,
		`{"destination_port":["80"],"destination_pod":["x/"]}`})
	if !same(deny, want) {
		t.Errorf("denied %v", deny)
	}
	f, err = parse("--pod=a --not")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Lists(); err == nil {
		t.Error("--not as the last is accepted")
	}
}

func TestWrongValuesNameTheFlag(t *testing.T) {
	for _, line := range []string{"--port=x", "--port=65536", "--ip=1.2.3", "--ip=1.1.1.1/33", "--identity=none",
		"--verdict=MAYBE", "--drop-reason-desc=NO", "--type=x", "--type=trace:x", "--tcp-flags=syn,xyz",
		"--reply=perhaps", "--traffic-direction=up", "--ip-version=5", "--http-status=600", "--http-path=(",
		"--http-header=a", "--protocol=xtp", "--ip-trace-id=0", "--pod=", "--namespace=a/b", "--workload=/",
		"--pod=a --from-pod=b", "--to-pod=a --pod=b", "--not --not"} {
		_, err := parse(line)
		words := strings.Fields(line)
		name, _, _ := strings.Cut(words[len(words)-1], "=")
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", line, err)
		}
	}
}

func TestRange(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		r    Range
		want string
	}{
		"nothing": {Range{}, `number:20`},
		"follow":  {Range{Follow: true}, `follow:true`},
		"last":    {Range{Last: 5, Follow: true}, `number:5 follow:true`},
		"first":   {Range{First: 5}, `number:5 first:true`},
		"all":     {Range{All: true}, `number:18446744073709551615`},
		"since":   {Range{Since: "1m"}, `since:{seconds:1795435140}`},
		"until": {Range{Since: "2026-11-23T11:00Z", Until: "2026-11-23"},
			`since:{seconds:1795431600} ` +
				`until:{seconds:1795392000}`},
	} {
		req, err := c.r.Request(&Filters{}, now)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := strings.ReplaceAll(req.String(), "  ", " "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	for _, r := range []Range{{First: 1, Last: 1}, {First: 1, All: true}, {First: 1, Follow: true},
		{Last: 1, All: true}, {Until: "1s", Follow: true}, {Since: "yesterday"}} {
		if req, err := r.Request(&Filters{}, now); err == nil || !strings.Contains(err.Error(), "--") {
			t.Errorf("%+v: %v, %v", r, req, err)
		}
	}
}
