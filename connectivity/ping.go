package connectivity

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// pinger is what differs between the families.
type pinger struct {
	network, local string
	ask, answer    icmp.Type
	protocol       int
}

func pingerOf(addr netip.Addr) pinger {
	if addr.Is4() {
		return pinger{"ip4:icmp", "0.0.0.0", ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply, 1}
	}
	return pinger{"ip6:ipv6-icmp", "::", ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply, 58}
}

// ping sends an echo request and waits for its answer. It needs CAP_NET_RAW.
func ping(ctx context.Context, host string, data []byte) error {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	p := pingerOf(addr)
	c, err := icmp.ListenPacket(p.network, p.local)
	if err != nil {
		return fmt.Errorf("open an ICMP socket: %w", err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	id := rand.IntN(1 << 16)
	request, err := (&icmp.Message{Type: p.ask, Body: &icmp.Echo{ID: id, Seq: 1, Data: data}}).Marshal(nil)
	if err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	if _, err := c.WriteTo(request, &net.IPAddr{IP: addr.AsSlice()}); err != nil {
		return err
	}
	buf := make([]byte, 1<<16)
	for {
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			return err
		}
		m, err := icmp.ParseMessage(p.protocol, buf[:n])
		if err != nil || m.Type != p.answer {
			continue
		}
		if e, ok := m.Body.(*icmp.Echo); ok && e.ID == id {
			if len(e.Data) != len(data) {
				return errors.New("an answer of another size came back")
			}
			return nil
		}
	}
}
