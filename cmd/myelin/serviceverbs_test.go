package main

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	apiv1 "myelin/api/v1"
)

// TestUpsertRequest: from flags to what the agent is asked.
func TestUpsertRequest(t *testing.T) {
	for _, c := range []struct{ args, want, err string }{
		{"--frontend 192.0.2.10:80", `name: "web" frontends: "192.0.2.10:80"`, ""},
		{
			"--frontend 192.0.2.10:80/TCP --frontend [2001:db8::a]:80/TCP --backend 10.0.0.1:8080 --backend " +
				"10.0.0.2:8080,weight=0",
			`name: "web" frontends: "192.0.2.10:80/TCP" frontends: "[2001:db8::a]:80/TCP"
			backends { address: "10.0.0.1:8080" } backends { address: "10.0.0.2:8080" weight: 0 }`, "",
		},
		{
			"--affinity 30m --algorithm maglev --mode dsr --source-range 10.0.0.0/8 --source-range fd00::/8 " +
				"--source-deny",
			`name: "web" affinity_seconds: 1800 algorithm: "maglev" mode: "dsr" source_ranges: "10.0.0.0/8" ` +
				`source_ranges: "fd00::/8" source_deny: true`, "",
		},
		{
			"--health-check http:/healthz?x=1:2 --health-port 9000 --health-host a.example --health-interval 5s " +
				"--health-timeout 300ms --health-rise 1 --health-fall 2",
			`name: "web" health_check { kind: "http" path: "/healthz?x=1:2" port: 9000 host: "a.example" ` +
				`interval_ms: 5000 timeout_ms: 300 rise: 1 fall: 2 }`, "",
		},
		{"--health-check grpc:a.b.C", `name: "web" health_check { kind: "grpc" service: "a.b.C" }`, ""},
		{"--health-check tcp", `name: "web" health_check { kind: "tcp" }`, ""},
		{"--health-check tcp --health-via direct", `name: "web" health_check { kind: "tcp" via: "direct" }`, ""},
		{"--health-via direct", "", "need --health-check"},
		{"--health-check tcp:80", "", "--health-check tcp:80: tcp has nothing behind it"},
		{"--health-check icmp", "", "--health-check icmp: want tcp"},
		{"--health-interval 5s", "", "need --health-check"},
		{"--health-check tcp --health-timeout 1us", "", "--health-timeout 1µs: want whole milliseconds"},
		{"--affinity 1ms", "", "--affinity 1ms: want whole seconds"},
		{
			"--quic-server-id-length 2 --backend 10.0.0.1:80,server-id=00ff,weight=3",
			`name: "web" quic_server_id_length: 2 backends { address: "10.0.0.1:80" weight: 3 server_id: "00ff" }`, "",
		},
		{"--backend 10.0.0.1:80,server-id=", "", "[,server-id=HEX]"},
		{"--backend 10.0.0.1:80,weight=1,weight=2", "", "N in 0..65535"},
		{"--backend 10.0.0.1:80,3", "", "--backend 10.0.0.1:80,3: want ADDRESS:PORT[,weight=N][,server-id=HEX]"},
		{"--backend 10.0.0.1:80,weight=65536", "", "N in 0..65535"},
	} {
		f := &upsertFlags{}
		if err := f.command().ParseFlags(strings.Fields(c.args)); err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		got, err := f.request("web")
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %v, want %q", c.args, err, c.err)
			}
			continue
		}
		want := &apiv1.Service{}
		if bad := prototext.Unmarshal([]byte(c.want), want); bad != nil {
			t.Fatal(bad)
		}
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: got %v, %v", c.args, got, err)
		}
	}
}

func TestEventText(t *testing.T) {
	weight := func(n uint32) *uint32 { return &n }
	for want, e := range map[string]*apiv1.ServiceEvent{
		"synced":      {Type: apiv1.ServiceEventType_SERVICE_EVENT_TYPE_SYNCED},
		"deleted web": {Type: apiv1.ServiceEventType_SERVICE_EVENT_TYPE_DELETED, Service: &apiv1.Service{Name: "web"}},
		"upserted web 192.0.2.10:80/TCP => 10.0.0.1:80 (active, passing), 10.0.0.2:80 (not-ready, weight 3) " +
			"problems: a; b": {
			Type: apiv1.ServiceEventType_SERVICE_EVENT_TYPE_UPSERTED, Service: &apiv1.Service{
				Name: "web", Frontends: []string{"192.0.2.10:80/TCP"}, Problems: []string{"a", "b"},
				Backends: []*apiv1.ServiceBackend{
					{Address: "10.0.0.1:80", Weight: weight(1), State: apiv1.BackendState_BACKEND_STATE_ACTIVE,
						Health: "passing"},
					{Address: "10.0.0.2:80", Weight: weight(3), State: apiv1.BackendState_BACKEND_STATE_NOT_READY},
				},
			},
		},
	} {
		if got := eventText(e); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
