package labtest

import (
	"maps"
	"strings"
	"testing"

	"myelin/status"
)

// pairedModes are combinations of a kind of links, a way to forward and encryption, in which each pair of them is.
func pairedModes(t *testing.T) (list []mode) {
	ipsec := byIPsec(t)
	for _, one := range []struct {
		link, routing string
		encryption    map[string]any
	}{
		{"veth", "native", nil}, {"veth", "legacy", ipsec}, {"veth", "vxlan", wireGuard()},
		{"netkit", "native", wireGuard()}, {"netkit", "legacy", nil}, {"netkit", "vxlan", ipsec},
		{"netkit-l2", "native", ipsec}, {"netkit-l2", "legacy", wireGuard()}, {"netkit-l2", "vxlan", nil},
	} {
		m := pacedMode(one.routing)
		m.name = one.link + " " + one.routing
		m.values["bpf.datapathMode"] = one.link
		maps.Copy(m.values, one.encryption)
		if kind := one.encryption["encryption.type"]; kind != nil {
			m.name += " " + kind.(string)
		}
		list = append(list, m)
	}
	return list
}

// TestBandwidthModes: limits of what pods send and receive hold within 2 % in combinations of links, ways to forward
// and encryption. Each limit applies to one protocol of one family, and all are measured at once. Sockets wait where
// the host's stack does not forward their packets, and none is dropped.
//
//	┌─ node1 ─────────────────────┐  ┌─ node2 ───────────────────┐
//	│ a1 b1 c1 d1 (egress)        │  │ a2 b2 c2 d2 (ingress)     │
//	│ e1 (sends to a2 b2 c2 d2)   │  │ e2 (receives of the four) │
//	└──────┬──────────────────────┘  └──────┬────────────────────┘
//	═══════╧════════════════════════════════╧═════════════════════
func TestBandwidthModes(t *testing.T) {
	if why := noFq(); why != "" {
		t.Skip(why)
	}
	for _, m := range pairedModes(t) {
		t.Run(m.name, func(t *testing.T) {
			if why := noEncryption(m); why != "" {
				t.Skip(why)
			}
			if strings.HasPrefix(m.name, "netkit") {
				needsNetkit(t)
			}
			c := up(t, setup{mode: m, pods: strings.Split("abcde", "")})
			c.says("BandwidthManager", status.OK, "EDT with BPF [")
			if m.values["encryption.enabled"] != nil {
				c.encrypted()
			}
			list := c.limitAll()
			for _, l := range list {
				defer c.saturate(l)()
			}
			c.limitsHold(podsFor, list...)
			c.socketsWait("node1")
		})
	}
}

// modeLimit is the limit of each pod, in bit/s, and as an annotation.
const (
	modeLimit     = 0.5e6
	modeLimitText = "500k"
)

// limitAll gives the pods a1 to d1 and a2 to d2 their limits, and returns the traffic that each is for.
func (c *cluster) limitAll() (list []limited) {
	c.t.Helper()
	egress, ingress := map[string]string{}, map[string]string{}
	for i, proto := range []string{"TCP", "TCP", "UDP", "UDP"} {
		from, to, f := podLetter(i)+"1", podLetter(i)+"2", c.stack.families[i%2]
		egress[from] = "kubernetes.io/egress-bandwidth: " + modeLimitText
		ingress[to] = "kubernetes.io/ingress-bandwidth: " + modeLimitText
		list = append(list, limited{from, "e2", proto, f, modeLimit}, limited{"e1", to, proto, f, modeLimit})
	}
	c.annotate(egress)
	c.annotate(ingress)
	for pod := range egress {
		c.listsLimits(pod, pod+" egress "+modeLimitText)
		c.wantSegments(pod, segmentsAt(modeLimit)) // before connections are made
	}
	for pod := range ingress {
		c.listsLimits(pod, pod+" ingress "+modeLimitText)
	}
	return list
}
