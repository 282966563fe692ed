package labtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/status"
)

// encryptionModes are the modes in which packets between nodes are encrypted with these values.
func encryptionModes(values map[string]any) []mode {
	var list []mode
	for _, name := range []string{"native", "legacy", "vxlan", "vxlan6"} {
		m := modeNamed(name)
		m.values = maps.Clone(m.values)
		maps.Copy(m.values, values)
		list = append(list, m)
	}
	strict := modeNamed("native")
	strict.name, strict.values = "strict", maps.Clone(list[0].values)
	strict.values["encryption.strictMode.egress.enabled"] = true
	strict.values["encryption.strictMode.egress.cidr"] = "10.0.0.0/8,fd00:10::/32"
	strict.values["encryption.strictMode.ingress.enabled"] = true
	return append(list, strict)
}

// wireGuard are the values that encrypt by WireGuard.
func wireGuard() map[string]any {
	return map[string]any{"encryption.enabled": true, "encryption.type": "wireguard"}
}

// encryptionState is what `myelin status` must say: where the kernel has no WireGuard, a process encrypts.
func encryptionState() status.State {
	if noType("type wireguard") != "" {
		return status.Fallback
	}
	return status.OK
}

// TestEncryption captures on the fabric while pods and nodes talk: no frame has what pods send or receive in plain
// text. What nodes send each other is not encrypted, and shows that the capture finds plain text; so do pods without
// encryption.
//
//	┌─ node1 ─────┐  ┌─ node2 ─────┐
//	│ a1  b1      │  │ a2  b2      │
//	└──────┬──────┘  └──────┬──────┘
//	═══════╧═══ capture ════╧═══════
func TestEncryption(t *testing.T) {
	modes := append(encryptionModes(wireGuard()), mode{"off", map[string]any{"autoDirectNodeRoutes": true}, 0})
	for _, m := range encryptionModes(byIPsec(t)) {
		m.name = "ipsec " + m.name
		modes = append(modes, m)
	}
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			if why := noEncryption(m); why != "" {
				t.Skip(why)
			}
			c := up(t, setup{mode: m})
			if m.name == "off" {
				c.says("Encryption", status.Off, "off")
			} else {
				c.encrypted()
			}
			seen := c.capture(marker("pod"), marker("node"))
			before := c.outcome("node1", bpf.DatapathOutcomeFORWARD_ENCRYPT)
			for _, f := range c.stack.families {
				for _, w := range [][2]string{{"a1", "a2"}, {"a2", "a1"}, {"a1", "node2"}, {"node2", "a1"}} {
					c.errorf(f, w[0]+"→"+w[1], c.talk(w[0], w[1], f, marker("pod")))
				}
				c.try(way{"a1", "world", "node1"}, f)
				c.errorf(f, "node1→node2", c.talk("node1", "node2", f, marker("node")))
				c.errorf(f, "a1→a2, checksum 0", zeroChecksum(t.Context(), c.end("a1"), c.end("a2"), f))
			}
			counts := seen()
			if counts[1] == 0 {
				t.Errorf("of what nodes sent each other in plain text the capture has nothing")
			}
			if plain := counts[0] > 0; plain != (m.name == "off") {
				t.Errorf("%d frames have what pods sent in plain text", counts[0])
			}
			n := c.outcome("node1", bpf.DatapathOutcomeFORWARD_ENCRYPT) - before
			if want := m.name != "off"; want != (n > 0) {
				t.Errorf("node1 has counted %d packets as FORWARD_ENCRYPT", n)
			}
		})
	}
}

// encrypted waits until each node encrypts what it sends to the other one.
func (c *cluster) encrypted() {
	c.t.Helper()
	for _, node := range []string{"node1", "node2"} {
		eventually(c.t, node+" encrypts", 20*time.Second, func() error {
			out, err := c.cli(node, "encrypt", "status")
			if err == nil && !strings.Contains(out, " true ") {
				err = errors.New("no node is encrypted")
			}
			prefixes, err2 := c.cli(node, "route", "prefixes")
			routes, err3 := c.cli(node, "route", "list")
			err = errors.Join(err, err2, err3)
			if err == nil && strings.Count(prefixes, " yes ") < len(c.stack.families)*2 {
				err = errors.New("prefixes are not encrypted")
			}
			if err == nil && encryptedRoutes(routes) < len(c.stack.families) {
				err = errors.New("what the host sends to pods is not encrypted")
			}
			if err != nil {
				return fmt.Errorf("%w: %s%s%s", err, out, prefixes, routes)
			}
			return nil
		})
	}
	state, chosen := encryptionState(), "WireGuard, 1 peer"
	if c.mode.values["encryption.type"] == "ipsec" {
		state, chosen = status.OK, "IPsec, 1 peer, key 3"
	}
	c.says("Encryption", state, chosen)
}

// encryptedRoutes counts routes by a device that encrypts, which the kernel has.
func encryptedRoutes(list string) (n int) {
	for line := range strings.Lines(list) {
		if (strings.Contains(line, " myelin_wg0 ") || strings.Contains(line, " myelin_ipsec0 ")) &&
			strings.Contains(strings.ToLower(line), "done") {
			n++
		}
	}
	return n
}

// marker is what the capture looks for. Traffic repeats it, so that each segment has it as a whole.
func marker(of string) []byte { return []byte("<<plain text of a " + of + ">>") }

// talk sends what is made of text each way, by UDP and by TCP.
func (c *cluster) talk(from, to string, family int, text []byte) error {
	a, b := c.end(from), c.end(to)
	return errors.Join(datagrams(c.t.Context(), a, b, b.addr(family), bytes.Repeat(text, 20)),
		bothWays(c.t.Context(), a, b, b.addr(family), bytes.Repeat(text, 4000)))
}

// zeroChecksum sends a datagram each way whose UDP checksum is 0, which is written as 0xFFFF.
func zeroChecksum(ctx context.Context, from, to end, family int) error {
	client, server, err := connectUDP(ctx, from, to, to.addr(family), nil, nil)
	if err != nil {
		return err
	}
	defer server.Close()
	defer client.Close()
	packet := make([]byte, 10)
	binary.BigEndian.PutUint16(packet, portOf(client.LocalAddr()))
	binary.BigEndian.PutUint16(packet[2:], portOf(server.LocalAddr()))
	packet[5] = byte(len(packet))
	l4Checksum(from.addr(family), to.addr(family), unix.IPPROTO_UDP, packet, 6)
	deadline := time.Now().Add(patience(2 * time.Second))
	if err := errors.Join(server.SetReadDeadline(deadline), client.SetReadDeadline(deadline)); err != nil {
		return err
	}
	data := packet[6:8] // added to the others, it makes their sum 0xFFFF
	if _, err := client.Write(data); err != nil {
		return err
	}
	n, peer, err := server.ReadFromUDPAddrPort(packet[8:])
	if err != nil {
		return err
	}
	if _, err := server.WriteToUDPAddrPort(packet[8:8+n], peer); err != nil { // of the same sum
		return err
	}
	_, err = client.Read(packet)
	return err
}

// datagrams sends a datagram each way, again if it is lost.
func datagrams(ctx context.Context, from, to end, dst netip.Addr, data []byte, options ...option) error {
	client, server, err := connectUDP(ctx, from, to, dst, options, options)
	if err != nil {
		return err
	}
	defer server.Close()
	defer client.Close()
	return converse(client, server, data)
}

// converse has a datagram of the client answered, again if it is lost.
func converse(client, server *net.UDPConn, data []byte) (err error) {
	buffer := make([]byte, 2*len(data))
	for range 3 {
		if _, err = client.Write(data); err != nil {
			continue
		}
		deadline := time.Now().Add(patience(2 * time.Second))
		if err = errors.Join(server.SetReadDeadline(deadline), client.SetReadDeadline(deadline)); err != nil {
			return err
		}
		n, peer, readErr := server.ReadFromUDPAddrPort(buffer)
		if err = readErr; err != nil {
			continue
		}
		if _, err = server.WriteToUDPAddrPort(buffer[:n], peer); err != nil {
			continue
		}
		if n, err = client.Read(buffer); err == nil && !bytes.Equal(buffer[:n], data) {
			return errors.New("another datagram came back")
		}
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("UDP: %w", err)
}

// bothWays sends data each way at once.
func bothWays(ctx context.Context, from, to end, dst netip.Addr, data []byte) error {
	client, server, err := connect(ctx, from, to, netip.AddrPort{}, at(dst, 0))
	if err != nil {
		return fmt.Errorf("TCP: %w", err)
	}
	defer client.Close()
	defer server.Close()
	return swap(client, server, data)
}

// swap sends data each way of a connection at once.
func swap(client, server *net.TCPConn, data []byte) error {
	var g errgroup.Group
	for _, conn := range []*net.TCPConn{client, server} {
		if err := conn.SetDeadline(soon()); err != nil {
			return err
		}
		g.Go(func() error {
			_, err := conn.Write(data)
			return err
		})
		g.Go(func() error {
			got := make([]byte, len(data))
			if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, data) {
				return fmt.Errorf("not what was sent arrives: %w", errOr(err, "other bytes"))
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("TCP: %w", err)
	}
	return nil
}
