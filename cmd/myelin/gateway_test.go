package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	apiv1 "myelin/api/v1"
)

func TestDrainProgress(t *testing.T) {
	peer := func(connected bool, behind uint64) *apiv1.PeerProgress {
		return &apiv1.PeerProgress{Address: "192.0.2.2:9882", Connected: connected, Behind: behind}
	}
	for want, p := range map[string]*apiv1.DrainProgress{
		"0 flows left, 0 active": {},
		"1 flow left, 1 active; 192.0.2.2:9882 is 1 flow behind": {Flows: 1, Active: 1,
			Peers: []*apiv1.PeerProgress{peer(true, 1)}},
		"3 flows left, 1 active": {Flows: 3, Active: 1, Unsynchronised: 3},
		"3 flows left, 1 active, 2 that no peer can take over; 192.0.2.2:9882 knows all": {
			Flows: 3, Active: 1, Unsynchronised: 2, Peers: []*apiv1.PeerProgress{peer(true, 0)}},
		"3 flows left, 0 active; 192.0.2.2:9882 is 2 flows behind; 192.0.2.2:9882 is not connected": {
			Flows: 3, Peers: []*apiv1.PeerProgress{peer(true, 2), peer(false, 0)}},
	} {
		if got := progressText(p); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A node that is no gateway says so, instead of which tables it has.
func TestPeersOfNoGateway(t *testing.T) {
	socket := serveFake(t, &fake{err: status.Error(codes.NotFound, "there is no table \"peers\": there are flows")})
	_, _, err := runNoun("gateway", "peers", "--socket", socket)
	if want := "this node is not a standalone load balancer with peers"; err == nil ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A wait ends when the agent says so or the timeout is over, which is an error.
func TestDrainWait(t *testing.T) {
	for name, tc := range map[string]struct {
		timeout   time.Duration
		done      bool
		out, fail string
	}{
		"done":     {time.Minute, true, "0 flows left, 0 active\ndrained\n", ""},
		"late":     {time.Nanosecond, false, "0 flows left, 0 active\n", "after 1ns there are still flows"},
		"no wait":  {0, false, "0 flows left, 0 active\n", ""},
		"not over": {time.Hour, false, "0 flows left, 0 active\n", "after 1h0m0s"},
	} {
		var out strings.Builder
		d := drainWait{w: &out, timeout: tc.timeout}
		if d.over() {
			t.Errorf("%s: over before the agent has answered", name)
		}
		for range 2 {
			if err := d.show(&apiv1.DrainProgress{Done: tc.done}); err != nil {
				t.Fatal(err)
			}
		}
		if over := d.over(); over != (name != "not over") {
			t.Errorf("%s: over: %t", name, over)
		}
		err := d.result()
		if (err == nil) != (tc.fail == "") || err != nil && !strings.Contains(err.Error(), tc.fail) {
			t.Errorf("%s: got %v, want %q", name, err, tc.fail)
		}
		if out.String() != tc.out {
			t.Errorf("%s: got %q, want %q", name, out.String(), tc.out)
		}
	}
}
