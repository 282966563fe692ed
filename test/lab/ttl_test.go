package labtest

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestHops sends packets that live for one hop more each time, as traceroute does: each node answers by its gateway
// address, and what arrives has lost one for each.
//
//	┌─ node1 ─────────────┐  ┌─ node2 ─────────────┐
//	│ a1  b1   10.0.1.1   │  │ a2       10.0.2.1   │
//	└──────┬──────────────┘  └──────┬──────────────┘
//	═══════╧════════════════════════╧═══════════════
func TestHops(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: m})
			for _, f := range c.stack.families {
				first, second := []netip.Addr{gateway(1, f)}, []netip.Addr{gateway(2, f)}
				if m.name == "legacy" { // there the node's own stack answers, as it likes
					first, second = append(first, nodeAddr(1, f)), append(second, nodeAddr(2, f))
				}
				c.expires("a1", c.end("b1").addr(f), 1, first...)
				c.expires("a1", c.end("a2").addr(f), 1, first...)
				c.expires("a1", c.end("a2").addr(f), 2, second...)
				c.arrivesWith("a1", "b1", f, 64-1)
				c.arrivesWith("a1", "a2", f, 64-2)
			}
		})
	}
}

// expires sends a datagram that lives for n hops and wants to hear from one of the addresses that it died.
func (c *cluster) expires(pod string, dst netip.Addr, n int, by ...netip.Addr) {
	c.t.Helper()
	f := family(dst)
	s, err := c.end(pod).dialUDP(c.t.Context(), netip.AddrPort{}, at(dst, 33434), hops(f, n), errorQueue(f))
	if err != nil {
		c.t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Write([]byte("how far?")); err != nil {
		c.errorf(f, "probe", err)
	}
	e, err := readError(s, patience(2*time.Second))
	if err != nil {
		c.t.Errorf("IPv%d %s→%s with %d hops: no word of its end: %v", f, pod, dst, n, err)
		return
	}
	kind := map[int]int{4: 11, 6: 3}[f] // time exceeded (RFC 792, RFC 4443)
	if e.kind != kind || e.code != 0 || !slices.Contains(by, e.from) {
		c.t.Errorf("IPv%d %s→%s with %d hops: %+v, want type %d from one of %v", f, pod, dst, n, e, kind, by)
	}
}

// arrivesWith looks at the TTL, or hop limit, of what arrives.
func (c *cluster) arrivesWith(from, to string, family, want int) {
	c.t.Helper()
	a, b := c.end(from), c.end(to)
	tell := perFamily(family, unix.IP_RECVTTL, unix.IPV6_RECVHOPLIMIT, 1)
	server, err := b.listenUDP(c.t.Context(), at(b.addr(family), 0), tell)
	if err != nil {
		c.t.Fatal(err)
	}
	defer server.Close()
	client, err := a.dialUDP(c.t.Context(), netip.AddrPort{}, at(b.addr(family), portOf(server.LocalAddr())),
		hops(family, 64))
	if err != nil {
		c.t.Fatal(err)
	}
	defer client.Close()
	_ = server.SetDeadline(soon())
	if _, err := client.Write([]byte("here")); err != nil {
		c.errorf(family, "datagram", err)
	}
	oob := make([]byte, 256)
	_, n, _, _, err := server.ReadMsgUDP(make([]byte, 100), oob)
	if err != nil {
		c.errorf(family, from+"→"+to, err)
		return
	}
	got, err := hopsOf(oob[:n])
	if err != nil || got != want {
		c.t.Errorf("IPv%d %s→%s arrives with %d hops left, %v; want %d", family, from, to, got, err, want)
	}
}

func hopsOf(oob []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0, err
	}
	for _, m := range messages {
		is4 := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TTL
		is6 := m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT
		if (is4 || is6) && len(m.Data) >= 4 {
			return int(native32(m.Data)), nil
		}
	}
	return 0, errors.New("no TTL in the ancillary data")
}
