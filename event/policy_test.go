package event_test

import (
	"net/netip"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/event"
)

// policies know rule 5, and what isolates.
type policies struct{ fixed }

func (policies) Rule(number uint32) string {
	return map[uint32]string{5: "NetworkPolicy demo/web spec.ingress[0] (p.yaml:9)"}[number]
}

func (policies) Isolating(of netip.Addr, egress bool) []string {
	switch {
	case egress && of == netip.MustParseAddr("10.0.1.2"):
		return []string{"NetworkPolicy demo/a", "NetworkPolicy demo/b"}
	case !egress && of == netip.MustParseAddr("10.0.1.3"):
		return []string{"NetworkPolicy demo/web"}
	}
	return nil
}

// What an event says of policies, by outcome, direction and what is known of rules.
func TestDecodePolicies(t *testing.T) {
	const denied, noRule = uint8(bpf.DatapathOutcomeDROP_POLICY_DENIED), uint8(bpf.DatapathOutcomeDROP_POLICY_NO_RULE)
	const drop, begin = uint8(bpf.DatapathEventTypeEVENT_DROP), uint8(bpf.DatapathEventTypeEVENT_FLOW_BEGIN)
	const audit = uint16(bpf.DatapathEventFlagEVENT_AUDIT)
	web := "NetworkPolicy demo/web spec.ingress[0] (p.yaml:9)"
	gone := "rule 6, which is no more"
	for _, c := range []struct {
		name  string
		names event.Names
		raw   event.Raw
		want  event.Event
	}{
		{"denied ingress", policies{}, event.Raw{Type: drop, Outcome: denied, Rule: [2]uint32{5, 6}, Denied: 1},
			event.Event{Rules: event.Rules{Ingress: web, Egress: gone}, Denied: "ingress",
				Policy: "ingress denied by " + web}},
		{"denied egress", policies{}, event.Raw{Type: drop, Outcome: denied, Rule: [2]uint32{0, 5}, Denied: 2},
			event.Event{Rules: event.Rules{Egress: web}, Denied: "egress", Policy: "egress denied by " + web}},
		{"no rule of ingress", policies{}, event.Raw{Type: drop, Outcome: noRule, Denied: 1},
			event.Event{Denied: "ingress", Policy: "no rule allowed ingress: isolated by NetworkPolicy demo/web"}},
		{"no rule of egress", policies{}, event.Raw{Type: drop, Outcome: noRule, Denied: 2},
			event.Event{Denied: "egress",
				Policy: "no rule allowed egress: isolated by NetworkPolicy demo/a, NetworkPolicy demo/b"}},
		{"no rule of egress, an answer", policies{}, event.Raw{Type: drop, Outcome: noRule, Denied: 2,
			Src: bpf.Addr(netip.MustParseAddr("10.0.1.9")), Dst: bpf.Addr(netip.MustParseAddr("10.0.1.2"))},
			event.Event{Denied: "egress",
				Policy: "no rule allowed egress: isolated by NetworkPolicy demo/a, NetworkPolicy demo/b"}},
		{"without names", fixed{}, event.Raw{Type: drop, Outcome: noRule, Rule: [2]uint32{0, 6}, Denied: 1},
			event.Event{Rules: event.Rules{Egress: gone}, Denied: "ingress", Policy: "no rule allowed ingress"}},
		{"a flow that begins", policies{}, event.Raw{Type: begin, Rule: [2]uint32{5, 0}},
			event.Event{Rules: event.Rules{Ingress: web}}},
		{"a flow that is denied", policies{}, event.Raw{Type: begin, Outcome: noRule, Denied: 1},
			event.Event{Outcome: "DROP_POLICY_NO_RULE", Denied: "ingress",
				Policy: "no rule allowed ingress: isolated by NetworkPolicy demo/web"}},
		{"a flow that is denied by a rule", policies{}, event.Raw{Type: begin, Outcome: denied, Rule: [2]uint32{0, 5},
			Denied: 2}, event.Event{Outcome: "DROP_POLICY_DENIED", Rules: event.Rules{Egress: web}, Denied: "egress",
			Policy: "egress denied by " + web}},
		{"audited: no rule", policies{}, event.Raw{Type: begin, Flags: audit, Denied: 1},
			event.Event{Denied: "ingress", Policy: "no rule allowed ingress: isolated by NetworkPolicy demo/web"}},
		{"audited: a rule", policies{}, event.Raw{Type: begin, Flags: audit, Rule: [2]uint32{5, 0}, Denied: 1},
			event.Event{Rules: event.Rules{Ingress: web}, Denied: "ingress", Policy: "ingress denied by " + web}},
		{"another drop", policies{}, event.Raw{Type: drop, Outcome: uint8(bpf.DatapathOutcomeDROP_TTL)}, event.Event{}},
	} {
		if c.raw.Src == (bpf.DatapathAddr{}) {
			c.raw.Src, c.raw.Dst = bpf.Addr(netip.MustParseAddr("10.0.1.2")), bpf.Addr(netip.MustParseAddr("10.0.1.3"))
		}
		got := event.NewDecoder(c.names, time.Unix(0, 0)).Decode(&c.raw)
		if begins := c.raw.Type == begin; begins && (got.Outcome != c.want.Outcome ||
			(got.Reason != "") != (c.want.Outcome != "")) {
			t.Errorf("%s: got outcome %q, reason %q, want outcome %q", c.name, got.Outcome, got.Reason, c.want.Outcome)
		}
		if got.Rules != c.want.Rules || got.Denied != c.want.Denied || got.Policy != c.want.Policy {
			t.Errorf("%s: got %+v %q %q, want %+v %q %q", c.name, got.Rules, got.Denied, got.Policy, c.want.Rules,
				c.want.Denied, c.want.Policy)
		}
	}
}
