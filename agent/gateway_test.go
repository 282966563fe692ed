package agent

import (
	"testing"

	"myelin/agent/feature"
	"myelin/service/gateway"
)

func TestPeerStatus(t *testing.T) {
	for want, p := range map[string]*gateway.Peer{
		"off: a this node":                {Address: "a", State: gateway.ThisNode},
		"ok: a connected, 2 flows behind": {Address: "a", State: gateway.Connected, Behind: 2},
		"fallback: a connected, 0 flows behind; it has refused flows: no_backend: 3": {Address: "a",
			State: gateway.Connected, Refused: map[string]uint64{"no_backend": 3}},
		"fallback: a connecting; not connected yet": {Address: "a", State: gateway.Connecting},
		"fallback: a connecting; refused":           {Address: "a", State: gateway.Connecting, Error: "refused"},
	} {
		s := peerStatus(p)
		got := string(s.State) + ": " + s.Chosen
		for _, problem := range s.Problems {
			got += "; " + problem
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if (s.Cost != "") != (s.State == feature.Fallback) {
			t.Errorf("%s: cost %q", want, s.Cost)
		}
	}
}
