package explain_test

import (
	"net/netip"
	"testing"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/explain"
	"myelin/policy/replay"
	"myelin/test/policy/policytest"
)

// TestReplayProxied replays what the proxy recorded, under the policies as they are and without web-more.
func TestReplayProxied(t *testing.T) {
	x := explain.New(policytest.Open(t, "testdata/proxied", "n1", t.TempDir(), policy.Config{Proxy: true}).Engine)
	ends := []replay.End{{Addr: netip.MustParseAddr("10.0.1.2")}, {Addr: netip.MustParseAddr("10.0.1.3")},
		{Addr: netip.MustParseAddr("198.51.100.7"), Labels: []string{"reserved:world-ipv4"}}}
	const web, world = 1, 2
	without := explain.Edit{Policies: map[policy.Ref]*policy.Object{
		{Kind: "CiliumNetworkPolicy", Key: cluster.Key{Namespace: "demo", Name: "web-more"}}: nil}}
	for _, test := range []struct {
		name          string
		to            int
		proto         uint8
		port          uint16
		content       replay.Content
		before, after string // empty: not decided
	}{
		{"get", web, 6, 80, replay.Content{HTTP: "GET /public/x"}, explain.Allowed, explain.Allowed},
		{"post", web, 6, 80, replay.Content{HTTP: "POST /public/x"}, explain.Denied, explain.Denied},
		{"put", web, 6, 80, replay.Content{HTTP: "PUT /b", Host: "web.demo"}, explain.Allowed, explain.Denied},
		{"other host", web, 6, 80, replay.Content{HTTP: "PUT /b", Host: "other"}, explain.Denied, explain.Denied},
		{"headers that are not recorded", web, 6, 80, replay.Content{HTTP: "GET /c"}, "", ""},
		{"no request", web, 6, 80, replay.Content{}, "", ""},
		{"query", web, 17, 53, replay.Content{DNS: "api.a.example"}, explain.Allowed, explain.Allowed},
		{"other query", web, 17, 53, replay.Content{DNS: "b.example"}, explain.Denied, explain.Denied},
		{"named", world, 6, 443, replay.Content{Names: "b.example x.a.example"}, explain.Allowed, explain.Allowed},
		{"not named", world, 6, 443, replay.Content{Names: "b.example"}, explain.Denied, explain.Denied},
		{"server name", world, 6, 444, replay.Content{Host: "tls.example"}, explain.Allowed, explain.Allowed},
		{"other server", world, 6, 444, replay.Content{Host: "other"}, explain.Denied, explain.Denied},
	} {
		t.Run(test.name, func(t *testing.T) {
			rec := &replay.Recording{Ends: ends, Flows: []replay.Flow{{Destination: test.to, Proto: test.proto,
				Port: test.port, Content: test.content, Connections: 1, Events: 1, Delivered: 1}}}
			got, err := x.Replay(t.Context(), without, rec, true)
			if err != nil {
				t.Fatal(err)
			}
			if test.before == "" {
				if len(got.Undecided) != 1 || len(got.Owners) != 0 {
					t.Errorf("decided: %+v", got)
				}
				return
			}
			if len(got.Owners) != 1 || len(got.Owners[0].Flows) != 1 {
				t.Fatalf("not decided: %+v", got)
			}
			f := got.Owners[0].Flows[0]
			if f.Before.Verdict != test.before || f.After.Verdict != test.after {
				t.Errorf("%+v, want %s, then %s", f, test.before, test.after)
			}
		})
	}
}
