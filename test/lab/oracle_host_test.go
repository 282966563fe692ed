package labtest

import (
	"fmt"
	"net"
	"net/netip"
	"time"
)

// hostAttacks are for a node that other nodes alone may reach.
func hostAttacks() []attack {
	var list []attack
	udp := fmt.Sprintf("udp 1000 > %d", witnessPort)
	syn := fmt.Sprintf("tcp 1000 > %d S seq 1", witnessPort)
	for _, from := range []string{"world", "att1"} {
		list = append(list,
			attack{"A1-ipv6-hidden-header-udp", 6, from, "node1", hiddenHeader(protoUDP, udp)},
			attack{"A1-ipv6-hidden-header-syn", 6, from, "node1", hiddenHeader(protoTCP, syn)},
			attack{"A1-ipv4-tiny-fragment", 4, from, "node1", tinyFragment},
			attack{"A1-cut-header", 0, from, "node1", cutHeader},
			attack{"A1-cut-header-padded", 0, from, "node1", cutHeaderPadded},
			attack{"A2-segment-of-no-connection", 0, from, "node1", loneSegment(1000, witnessPort, "PA")},
			attack{"A5-plain", 0, from, "node1", func(s *shot) { s.plain(udp, s.payload()) }},
		)
	}
	for _, tag := range []string{"vlan 0", "qinq 0", "vlan 0 | vlan 0", "qinq 0 | vlan 0"} {
		list = append(list, attack{"A5-priority-tag " + tag, 0, "world", "node1", func(s *shot) {
			s.send(s.text(s.eth(), tag, s.ip(), udp, s.payload()))
		}})
	}
	for _, to := range []string{"255.255.255.255", "192.168.64.255", "224.0.0.1"} {
		list = append(list, attack{"A5-to-" + to, 4, "world", "node1", func(s *shot) {
			s.send(s.text("eth world > broadcast", "ip4 world > "+to, udp, s.payload()))
		}})
	}
	for _, to := range []string{"ff02::1", "ff01::1", "ff02::2"} {
		list = append(list, attack{"A5-to-" + to, 6, "world", "node1", func(s *shot) {
			s.send(s.text("eth world > all-nodes", "ip6 world > "+to, udp, s.payload()))
		}})
	}
	return append(list,
		attack{"A5-link-local-udp", 6, "world", "node1", linkLocalDatagram},
		attack{"A5-link-local-tcp", 6, "world", "node1", linkLocalConnection},
		attack{"A5-link-local-udp", 6, "att1", "node1", linkLocalDatagram},
	)
}

// linkLocal is the link-local address of a place's eth0.
func (a *arena) linkLocal(e end) (addr netip.Addr) {
	a.t.Helper()
	check(a.t, e.Do(func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		addrs, err := eth0.Addrs()
		for _, each := range addrs {
			p, err := netip.ParsePrefix(each.String())
			if err == nil && p.Addr().IsLinkLocalUnicast() && p.Addr().Is6() {
				addr = p.Addr()
			}
		}
		return err
	}))
	return addr
}

// linkLocalDatagram sends to the target's link-local address.
func linkLocalDatagram(s *shot) {
	to, udp := s.linkLocal(s.end(s.to)), fmt.Sprintf("udp 1000 > %d", witnessPort)
	s.send(s.text(s.eth(), fmt.Sprintf("ip6 %s > %s", s.from, to), udp, s.payload()))
	if from := s.linkLocal(s.end(s.from)); from.IsValid() {
		s.send(s.text(s.eth(), fmt.Sprintf("ip6 %s > %s", from, to), udp, s.payload()))
	}
}

// linkLocalConnection opens a connection to the target's link-local address, and sends by it.
func linkLocalConnection(s *shot) {
	to := net.TCPAddr{IP: s.linkLocal(s.end(s.to)).AsSlice(), Port: witnessPort, Zone: "eth0"}
	check(s.t, s.end(s.from).Do(func() error {
		d := net.Dialer{Timeout: patience(time.Second)}
		c, err := d.DialContext(s.t.Context(), "tcp6", to.String())
		if err != nil {
			return nil // as it should be
		}
		defer c.Close()
		_, err = c.Write(s.tag)
		return err
	}))
}

// prefilterAttacks are for a node that the stranger's addresses may not reach.
func prefilterAttacks() []attack {
	udp := fmt.Sprintf("udp 1000 > %d", witnessPort)
	var list []attack
	for _, tag := range []string{"", "vlan 0", "qinq 0", "vlan 0 | vlan 0", "qinq 0 | vlan 0"} {
		list = append(list, attack{"A5-prefilter " + tag, 0, "world", "node1", func(s *shot) {
			layers := []string{s.eth(), tag, "ip stranger > " + s.to, udp, s.payload()}
			if tag == "" {
				layers = append(layers[:1], layers[2:]...)
			}
			s.send(s.text(layers...))
		}})
	}
	return list
}
