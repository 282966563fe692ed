package labtest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// attack is one way in, named after the item of the review that found it.
type attack struct {
	name     string
	family   int // 0: both
	from, to string
	run      func(*shot)
}

// nativeAttacks are those that need nothing but policies.
func nativeAttacks() []attack {
	var (
		list      []attack
		hiddenUDP = hiddenHeader(protoUDP, fmt.Sprintf("udp 1000 > %d", witnessPort))
		hiddenSYN = hiddenHeader(protoTCP, fmt.Sprintf("tcp 1000 > %d S seq 1", witnessPort))
		data      = loneSegment(1000, witnessPort, "PA")
	)
	ways := [][2]string{{"att1", "vic1"}, {"att2", "vic1"}, {"jail1", "open1"}, {"jail1", "open2"}, {"world", "vic1"}}
	for _, way := range ways {
		list = append(list,
			attack{"A1-ipv6-hidden-header-udp", 6, way[0], way[1], hiddenUDP},
			attack{"A1-ipv6-hidden-header-syn", 6, way[0], way[1], hiddenSYN},
			attack{"A1-ipv4-tiny-fragment", 4, way[0], way[1], tinyFragment},
			attack{"A1-cut-header", 0, way[0], way[1], cutHeader},
			attack{"A1-cut-header-padded", 0, way[0], way[1], cutHeaderPadded},
			attack{"A2-segment-of-no-connection", 0, way[0], way[1], data},
			attack{"A2-ack-of-no-connection", 0, way[0], way[1], loneSegment(80, 32768, "A")},
			attack{"A2-fin-of-no-connection", 0, way[0], way[1], loneSegment(443, 65535, "FA")},
			attack{"A2-rst-of-no-connection", 0, way[0], way[1], loneSegment(443, 50000, "R")},
			attack{"A2-syn-ack-of-no-connection", 0, way[0], way[1], loneSegment(443, 50001, "SA")},
			attack{"A2-no-flags", 0, way[0], way[1], loneSegment(443, 50002, "")},
		)
	}
	return append(list,
		attack{"A3-unreachable-quotes-other-flow", 0, "att1", "vic1", quotingError("unreachable port", "jail1")},
		attack{"A3-too-big-quotes-other-flow", 0, "att1", "vic1", quotingError("too-big mtu 1400", "jail1")},
		attack{"A3-unreachable-quotes-other-flow", 0, "att2", "vic1", quotingError("unreachable port", "jail1")},
		attack{"A3-time-exceeded-quotes-other-flow", 0, "jail1", "open1", quotingError("time-exceeded", "srv2")},
		attack{"A3-unreachable-quotes-other-flow", 0, "jail1", "open2", quotingError("unreachable port", "srv2")},
		attack{"A3-error-in-fragments", 0, "att1", "vic1", fragmentedError},
		attack{"A3-error-in-fragments", 0, "att2", "vic1", fragmentedError},
		attack{"A4-wire-own-node", 0, "world", "vic1", forged("node1")},
		attack{"A4-wire-own-gateway", 0, "world", "vic1", forged("gw1")},
		attack{"A4-wire-own-pod", 0, "world", "vic1", forged("fr1")},
		attack{"A4-wire-own-address-as-both", 0, "world", "vic1", forged("vic1")},
	)
}

// forged sends a datagram in another's name.
func forged(as string) func(*shot) {
	return func(s *shot) {
		s.send(s.text(s.eth(), "ip "+as+" > "+s.to, fmt.Sprintf("udp 1000 > %d", witnessPort), s.payload()))
	}
}

// fire runs the attacks, and fails where what they send is heard.
func (a *arena) fire(t *testing.T, attacks []attack) {
	t.Helper()
	for _, row := range attacks {
		for _, f := range a.stack.families {
			if row.family != 0 && row.family != f {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s-to-%s/IPv%d", row.name, row.from, row.to, f), func(t *testing.T) {
				w := a.witness(t, row.to, f, witnessPort)
				defer w.leave()
				s := a.shot(t, f, row.from, row.to)
				row.run(s)
				if where := w.heard(s.tag); len(where) > 0 {
					t.Errorf("%s reached %s: %s", row.from, row.to, strings.Join(where, ", "))
				}
			})
		}
	}
}

// control has an allowed packet arrive: what nothing reaches proves nothing.
func (a *arena) control(t *testing.T, from, to string) {
	t.Helper()
	for _, f := range a.stack.families {
		w := a.witness(t, to, f, witnessPort)
		eventually(t, from+" reaches "+to, 5*time.Second, func() error {
			s := a.shot(t, f, from, to)
			s.datagram(at(a.end(to).addr(f), witnessPort), s.tag)
			if where := w.heard(s.tag); len(where) < 2 {
				return fmt.Errorf("IPv%d is heard at %v only", f, where)
			}
			return nil
		})
		w.leave()
	}
}

// TestOracleDirected sends what got past policies at commit 798cca6, one way after the other: none is heard.
func TestOracleDirected(t *testing.T) {
	t.Run("native", func(t *testing.T) {
		t.Parallel()
		a := upArena(t, setup{mode: modeNamed("native")})
		a.controls(t)
		a.fire(t, nativeAttacks())
	})
	t.Run("vxlan", func(t *testing.T) {
		t.Parallel()
		a := upArena(t, setup{mode: modeNamed("vxlan")})
		a.controls(t)
		a.fire(t, tunnelAttacks())
	})
	t.Run("host", func(t *testing.T) {
		t.Parallel()
		hosts := map[string]any{"hostFirewall.enabled": true}
		a := upArena(t, setup{mode: modeNamed("native"), values: hosts}, hostPolicy())
		a.control(t, "node2", "node1")
		a.fire(t, hostAttacks())
	})
	for name, acceleration := range map[string]string{"prefilter-tc": "disabled", "prefilter-xdp": "testing-only"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := upArena(t, setup{mode: modeNamed("native"), values: map[string]any{
				"myelin.policy.prefilter": []string{"blocked"}, "loadBalancer.acceleration": acceleration,
			}}, blockedGroup("172.16.9.0/24", "fd00:dead::/64"))
			a.control(t, "node2", "node1")
			a.fire(t, prefilterAttacks())
		})
	}
}

// controls checks that what the policies allow arrives.
func (a *arena) controls(t *testing.T) {
	t.Helper()
	ways := [][2]string{{"fr1", "vic1"}, {"fr2", "vic1"}, {"jail1", "srv2"}, {"att1", "open1"}, {"att2", "jail1"}}
	for _, way := range ways {
		a.control(t, way[0], way[1])
	}
}

// tunnelAttacks are those of a cluster whose pods talk in a tunnel.
func tunnelAttacks() []attack {
	var list []attack
	udp := fmt.Sprintf("udp 1000 > %d", witnessPort)
	for _, from := range []string{"att1", "att2", "open1", "world"} {
		for _, as := range []string{"fr2", "fr1", "node1", "gw1", "srv2"} {
			list = append(list, attack{"A4-vxlan-by-udp-socket-as-" + as, 0, from, "vic1", injected(as)})
		}
	}
	names := [][2]string{{"stranger", "fr2"}, {"node1", "fr2"}, {"node2", "fr1"}, {"node2", "gw1"}, {"node2", "node1"}}
	for _, as := range names {
		name := fmt.Sprintf("A4-vxlan-from-%s-as-%s", as[0], as[1])
		list = append(list, attack{name, 0, "world", "vic1", encapsulated(as[0], as[1])})
	}
	return append(list,
		attack{"A1-ipv6-hidden-header-udp", 6, "att2", "vic1", hiddenHeader(protoUDP, udp)},
		attack{"A2-segment-of-no-connection", 0, "att2", "vic1", loneSegment(1000, witnessPort, "PA")},
		attack{"A4-wire-plain", 0, "world", "vic1", forged("fr2")},
		attack{"A4-wire-own-node", 0, "world", "vic1", forged("node1")},
		attack{"A4-wire-own-gateway", 0, "world", "vic1", forged("gw1")},
		attack{"A4-wire-own-pod", 0, "world", "vic1", forged("fr1")},
	)
}

// injected sends a datagram to the tunnel's port of the target's node, by an ordinary socket, with a packet of
// another's inside.
func injected(as string) func(*shot) {
	return func(s *shot) {
		udp := fmt.Sprintf("udp 1000 > %d", witnessPort)
		inner := s.text("eth stranger > stranger", "ip "+as+" > "+s.to, udp, s.payload())
		payload := append([]byte{0x08, 0, 0, 0, 0, 0, 1, 0}, inner...)
		for _, f := range s.stack.families {
			s.datagram(netip.AddrPortFrom(s.end(s.node(s.to)).addr(f), 8472), payload)
		}
	}
}

// encapsulated sends a tunnel's packet in one name, over IPv4 as nodes do, with a packet in another name inside.
func encapsulated(outer, inner string) func(*shot) {
	return func(s *shot) {
		over4 := fmt.Sprintf("ip4 %s > %s", outer, s.node(s.to))
		udp := fmt.Sprintf("udp 1000 > %d", witnessPort)
		s.send(s.text(s.eth(), over4, "udp 50000 > 8472 nosum", "vxlan vni 1", "eth stranger > stranger",
			"ip "+inner+" > "+s.to, udp, s.payload()))
	}
}
