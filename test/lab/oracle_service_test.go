package labtest

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"
)

// allBut lets a pod of an arena be reached by every address but one of each family.
func allBut(pod string, addrs []netip.Addr) string {
	yaml := "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n" +
		"metadata: {name: all-but-" + pod + ", namespace: default}\n" +
		"spec:\n  podSelector: {matchLabels: {name: " + pod + "}}\n  ingress:\n  - from:\n"
	for _, addr := range addrs {
		all := map[bool]string{true: "0.0.0.0/0", false: "::/0"}[addr.Is4()]
		yaml += fmt.Sprintf("    - ipBlock: {cidr: %q, except: [%q]}\n", all, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return yaml
}

// TestOracleSameBackend has a pod that a backend's policy forbids ask for it by two Services, from one port: the
// backend hears of neither.
//
//	┌─ node1 ──────────┐  ┌─ node2 ──┐
//	│ att1    open1    │  │  open2   │     one and two are Services of both
//	└──────────────────┘  └──────────┘
func TestOracleSameBackend(t *testing.T) {
	for _, name := range []string{"native", "vxlan"} {
		t.Run("A7-same-backend/"+name, func(t *testing.T) {
			t.Parallel()
			a := upArena(t, setup{mode: modeNamed(name), values: perPacket()})
			a.enforce(t, allBut("open1", a.end("att1").addrs), allBut("open2", a.end("att1").addrs))
			for i, backend := range []string{"open1", "open2"} {
				for _, f := range a.stack.families {
					a.twoServices(t, backend, 40+2*i, f)
				}
			}
		})
	}
}

// twoServices asks for a backend by two Services, of which n is the first one's number.
func (a *arena) twoServices(t *testing.T, backend string, n, f int) {
	t.Helper()
	a.apply(backend, serviceYAML(backend+"-one", n, "")+a.slicesYAML(backend+"-one", backend)+
		serviceYAML(backend+"-two", n+1, "")+a.slicesYAML(backend+"-two", backend))
	a.pass(t)
	w := a.witness(t, backend, f, 7001)
	defer w.leave()
	a.servicesReady(t, w, backend, n, f)
	for _, layer := range []string{"udp 2000 > 53", "tcp 2000 > 80 S seq 1"} {
		for i := range 4 {
			s := a.shot(t, f, "att1", backend)
			s.send(s.text(s.eth(), fmt.Sprintf("ip att1 > %s", serviceAddr(n+i%2, f)), layer, s.payload()))
			if where := w.heard(s.tag); len(where) > 0 {
				t.Errorf("IPv%d: %s, packet %d, to Service %d reached %s: %v", f, layer, i+1, 1+i%2, backend, where)
			}
		}
	}
}

// servicesReady waits until both Services lead another pod to the backend.
func (a *arena) servicesReady(t *testing.T, w *witness, backend string, n, f int) {
	t.Helper()
	for i := range 2 {
		eventually(t, "a Service leads to "+backend, 10*time.Second, func() error {
			s := a.shot(t, f, "att2", backend)
			s.datagram(at(serviceAddr(n+i, f), 53), s.tag)
			if len(w.heard(s.tag)) == 0 {
				return fmt.Errorf("IPv%d: nothing arrives", f)
			}
			return nil
		})
	}
}

// TestOracleDirectReturn sends packets with the option of direct server return that no node put there: connections of
// pods go on, and policies are asked.
//
//	┌─ node1 ──────┐  ┌─ node2 ──────┐
//	│ vic1 open1 ◄─┼──┼─ fr2  att2   │
//	└──────┬───────┘  └──────┬───────┘
//	═══════╧═════════════════╧═══════ world: options in the name of fr2, and in its own
func TestOracleDirectReturn(t *testing.T) {
	for _, name := range []string{"native", "vxlan"} {
		t.Run("A8-option/"+name, func(t *testing.T) {
			t.Parallel()
			values := perPacket()
			maps.Copy(values, map[string]any{"loadBalancer.mode": "dsr"})
			a := upArena(t, setup{mode: modeNamed(name), values: values})
			a.apply("service", a.outsideYAML("near", outNear, "", "open1", "vic1"))
			a.pass(t)
			a.routeOutside(1)
			for _, f := range a.stack.families {
				a.fire(t, []attack{
					{"A8-option-past-policy", f, "att2", "vic1", ownOption("udp 1000 > 41000", 53)},
					{"A8-option-past-policy", f, "world", "vic1", ownOption("udp 1000 > 41000", 53)},
					{"A8-option-past-policy-syn", f, "att2", "vic1", ownOption("tcp 1000 > 41000 S seq 1", 80)},
					{"A8-option-out-of-jail", f, "jail1", "open2", ownOption("udp 1000 > 41000", 53)},
				})
				for _, forger := range []string{"world", "att2"} {
					for _, flags := range []string{"S seq 1", "A seq 1 ack 1", "PA seq 1 ack 1"} {
						a.hang(t, forger, flags, f, 0)
					}
				}
				a.hang(t, "world", "S seq 1", f, 8080)
				a.hang(t, "world", "A seq 1 ack 1", f, 8080)
			}
		})
	}
}

// ownOption sends a packet with the option in the sender's own name.
func ownOption(l4 string, port uint16) func(*shot) {
	return func(s *shot) { s.option(s.from, l4, lbAddr(outNear, s.f), port) }
}

// option sends a packet with a layer of TCP or UDP and the tag, and the option that says that it was sent to an address
// of a Service.
func (s *shot) option(as, l4 string, service netip.Addr, port uint16) {
	s.t.Helper()
	if s.f == 4 {
		opt := binary.BigEndian.AppendUint16([]byte{0x9a, 8}, port)
		opt = append(opt, service.AsSlice()...)
		s.send(s.text(s.eth(), fmt.Sprintf("ip %s > %s opts %s", as, s.to, hex.EncodeToString(opt)), l4, s.payload()))
		return
	}
	opt := append([]byte{0x1b, 18}, service.AsSlice()...)
	opt = append(binary.BigEndian.AppendUint16(opt, port), 1, 0)
	header := "dstopts body " + hex.EncodeToString(opt)
	s.send(s.text(s.eth(), fmt.Sprintf("ip %s > %s", as, s.to), header, l4, s.payload()))
}

// hang opens a connection to a port of vic1, 0 for any but the Service's own, has a packet with the option sent in its
// client's name, and looks whether the connection goes on. The forger is the client's own pod where it is one.
func (a *arena) hang(t *testing.T, forger, flags string, f int, port uint16) {
	t.Helper()
	client := map[string]string{"world": "fr2", "att2": "att2"}[forger]
	server := map[string]string{"world": "vic1", "att2": "open1"}[forger]
	t.Run(fmt.Sprintf("A8-option-hangs-connection/%s-%s-%d/IPv%d", forger, flags, port, f), func(t *testing.T) {
		to := a.end(server)
		near, far, err := connect(t.Context(), a.end(client), to, netip.AddrPort{}, at(to.addr(f), port))
		check(t, err)
		defer near.Close()
		defer far.Close()
		c := connection{name: client, client: near, server: far}
		check(t, c.exchange(patience(2*time.Second)))
		s := a.shot(t, f, forger, server)
		l4 := fmt.Sprintf("tcp %d > %d %s", portOf(near.LocalAddr()), portOf(far.LocalAddr()), flags)
		s.option(client, l4, lbAddr(outNear, f), 80)
		time.Sleep(patience(50 * time.Millisecond))
		if err := c.exchange(patience(2 * time.Second)); err != nil {
			t.Errorf("after a packet by %s, the connection from %s to %s: %v", forger, client, server, err)
		}
	})
}
