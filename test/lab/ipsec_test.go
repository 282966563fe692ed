package labtest

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/status"
)

// byIPsec are the values that encrypt by IPsec, with key 3 in a file of the test.
func byIPsec(t *testing.T) map[string]any {
	t.Helper()
	dir := t.TempDir()
	writeKey(t, dir, 3)
	return map[string]any{"encryption.enabled": true, "encryption.type": "ipsec", "encryption.ipsec.mountPath": dir}
}

// writeKey writes a new key with that identifier, as Kubernetes does it: a rename.
func writeKey(t *testing.T, dir string, id int) {
	t.Helper()
	key := make([]byte, 20)
	if _, err := rand.Read(key); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%d+ rfc4106(gcm(aes)) %s 128\n", id, hex.EncodeToString(key))
	next := filepath.Join(dir, "next")
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "keys")); err != nil {
		t.Fatal(err)
	}
}

func noIPsec() string { return noType("type xfrm if_id 1") }

// noEncryption says why the kernel can't encrypt as the mode wants, empty if it can.
func noEncryption(m mode) string {
	switch m.values["encryption.type"] {
	case "wireguard":
		if encryptionState() == status.Fallback {
			return noTUN() // of the process
		}
	case "ipsec":
		return noIPsec()
	}
	return ""
}

// TestIPsec rotates the key under traffic, has a node send in the name of another one, and has the kernel lose states.
//
//	┌─ node1 ─────┐  ┌─ node2 ─────┐  ┌─ node3 ─────┐
//	│ a1          │  │ a2          │  │ a3          │
//	└──────┬──────┘  └──────┬──────┘  └──────┬──────┘
//	═══════╧════════════════╧════════════════╧═══════
func TestIPsec(t *testing.T) {
	if why := noIPsec(); why != "" {
		t.Skip(why)
	}
	m := modeNamed("native")
	m.values = maps.Clone(m.values)
	maps.Copy(m.values, byIPsec(t))
	m.values["encryption.ipsec.keyRotationDuration"] = "10s"
	m.values["encryption.strictMode.ingress.enabled"] = true
	c := up(t, setup{mode: m, nodes: 3, pods: []string{"a"}})
	c.usesKey(3)
	c.soonWorks(way{"a1", "a2", "a1"}, way{"a1", "a3", "a1"})
	t.Run("rotation", c.rotates)
	t.Run("another node's name", c.forges)
	t.Run("kill -9", c.keepsStates)
	t.Run("lost states", func(t *testing.T) {
		before := c.spis("node1")
		if _, err := c.Node("node1").Exec(t.Context(), "ip", "xfrm", "state", "flush"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "states with other keys", 90*time.Second, func() error {
			if after := c.spis("node1"); len(after) != 4 {
				return fmt.Errorf("states %v", after)
			}
			return nil
		})
		for spi := range c.spis("node1") {
			if before[spi] {
				t.Errorf("SPI %s is used again", spi)
			}
		}
		c.soonWorks(way{"a1", "a2", "a1"}, way{"a3", "a1", "a3"})
		c.usesKey(4)
	})
}

// rotates replaces the key while datagrams are sent, none of which is lost.
func (c *cluster) rotates(t *testing.T) {
	stop := c.echoes(t, "a1", "a2")
	writeKey(t, c.mode.values["encryption.ipsec.mountPath"].(string), 4)
	c.usesKey(4)
	c.keyEnds()
	if sent, lost := stop(); lost > 0 || sent < 100 {
		t.Errorf("%d of %d datagrams were lost", lost, sent)
	}
}

// keepsStates kills an agent: states stay as they are, and no datagram is lost.
func (c *cluster) keepsStates(t *testing.T) {
	before, stop, node := c.spis("node1"), c.echoes(t, "a1", "a2"), c.Node("node1")
	if err := errors.Join(node.KillAgent(t.Context()), node.StartAgent(t.Context(), nil)); err != nil {
		t.Fatal(err)
	}
	c.usesKey(4)
	if after := c.spis("node1"); !maps.Equal(before, after) {
		t.Errorf("other states after the agent started again: %v, before %v", after, before)
	}
	if sent, lost := stop(); lost > 0 || sent < 10 {
		t.Errorf("%d of %d datagrams were lost", lost, sent)
	}
}

// usesKey waits until all nodes send with a key.
func (c *cluster) usesKey(id int) {
	c.t.Helper()
	peers := len(c.Nodes()) - 1
	c.says("Encryption", status.OK, fmt.Sprintf("IPsec, %s, key %d", feature.Plural(peers, "peer"), id))
	for _, n := range c.Nodes() {
		node := n.Name()
		eventually(c.t, fmt.Sprintf("%s sends with key %d", node, id), 60*time.Second, func() error {
			var rows []struct {
				Node, Why string
				Encrypted bool
				Key       int
			}
			c.jsonCLI(&rows, node, "encrypt", "status")
			for _, r := range rows {
				if !r.Encrypted || r.Key != id || r.Why != "" {
					return fmt.Errorf("got %+v", r)
				}
			}
			return nil
		})
	}
}

// keyEnds waits until no node has states of a former key.
func (c *cluster) keyEnds() {
	c.t.Helper()
	eventually(c.t, "the former key has ended", 60*time.Second, func() error {
		for _, node := range c.Nodes() {
			if n, want := len(c.spis(node.Name())), 2*(len(c.Nodes())-1); n != want {
				return fmt.Errorf("%s has %d states, want %d: one each way for each other node", node.Name(), n, want)
			}
		}
		return nil
	})
}

// spis are the SPIs of a node's states.
func (c *cluster) spis(node string) map[string]bool {
	c.t.Helper()
	var rows []struct{ SPI string }
	c.jsonCLI(&rows, node, "encrypt", "states")
	list := map[string]bool{}
	for _, r := range rows {
		list[r.SPI] = true
	}
	return list
}

// echoes sends datagrams, each of which is answered, over all families until stop, which counts those that were lost.
func (c *cluster) echoes(t *testing.T, from, to string) (stop func() (sent, lost int)) {
	t.Helper()
	a, b, done := c.end(from), c.end(to), make(chan struct{})
	type count struct{ sent, lost int }
	results := make(chan count)
	for _, f := range c.stack.families {
		server, err := b.listenUDP(t.Context(), at(b.addr(f), 0))
		if err != nil {
			t.Fatal(err)
		}
		client, err := a.dialUDP(t.Context(), netip.AddrPort{}, at(b.addr(f), portOf(server.LocalAddr())))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close(); client.Close() })
		go func() {
			buffer := make([]byte, 64)
			for {
				n, peer, err := server.ReadFromUDPAddrPort(buffer)
				if err != nil {
					return
				}
				_, _ = server.WriteToUDPAddrPort(buffer[:n], peer)
			}
		}()
		go func() {
			var n count
			buffer := make([]byte, 64)
			for {
				select {
				case <-done:
					results <- n
					return
				case <-time.After(10 * time.Millisecond):
				}
				n.sent++
				_, err := client.Write([]byte("echo"))
				err = errors.Join(err, client.SetReadDeadline(time.Now().Add(patience(3*time.Second))))
				if _, readErr := client.Read(buffer); errors.Join(err, readErr) != nil {
					n.lost++
				}
			}
		}()
	}
	return func() (sent, lost int) {
		close(done)
		for range c.stack.families {
			n := <-results
			sent, lost = sent+n.sent, lost+n.lost
		}
		return sent, lost
	}
}

// forges has node1 send what node2 decrypts, with the addresses of node3, of its pod, and of the world.
func (c *cluster) forges(t *testing.T) {
	for _, f := range c.stack.families {
		a2 := c.end("a2")
		server, err := a2.listenUDP(t.Context(), at(a2.addr(f), 0))
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		sender, err := c.end("node1").raw(a2.addr(f))
		if err != nil {
			t.Fatal(err)
		}
		defer sender.Close()
		send := func(src netip.Addr) {
			packet := make([]byte, 8, 16)
			binary.BigEndian.PutUint16(packet, 4000)
			binary.BigEndian.PutUint16(packet[2:], portOf(server.LocalAddr()))
			binary.BigEndian.PutUint16(packet[4:], 16)
			packet = append(packet, "forgery!"...)
			l4Checksum(src, a2.addr(f), unix.IPPROTO_UDP, packet, 6)
			if err := sender.send(ipPacket(src, a2.addr(f), unix.IPPROTO_UDP, packet)); err != nil {
				t.Fatal(err)
			}
		}
		receives := func() bool {
			if err := server.SetReadDeadline(time.Now().Add(patience(time.Second))); err != nil {
				t.Fatal(err)
			}
			_, err := server.Read(make([]byte, 64))
			return err == nil
		}
		if send(c.end("node1").addr(f)); !receives() {
			t.Errorf("IPv%d: what the node sends in its own name does not arrive", f)
		}
		for _, of := range []string{"node3", "a3", "world"} {
			before := c.outcome("node2", bpf.DatapathOutcomeDROP_TUNNEL_SOURCE)
			if send(c.end(of).addr(f)); receives() {
				t.Errorf("IPv%d: node1 sends with the address of %s", f, of)
			}
			if n := c.outcome("node2", bpf.DatapathOutcomeDROP_TUNNEL_SOURCE) - before; n != 1 {
				t.Errorf("IPv%d: %d packets with the address of %s are counted", f, n, of)
			}
		}
	}
}
