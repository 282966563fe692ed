package labtest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/bpf"
)

// TestNodeEncryption captures on the fabric while nodes talk to each other and to pods of each other: no frame has what
// they send in plain text, also from a socket that is bound to the wire, after a restart of an agent and the rotation
// of a key. What node1 and node3 send each other is in plain text, as node3 opts out by its label, and shows that the
// capture finds plain text.
//
//	┌─ node1 ─────┐  ┌─ node2 ─────┐  ┌─ node3, control plane ─┐
//	│ a1  b1      │  │ a2  b2      │  │ a3  b3                 │
//	└──────┬──────┘  └──────┬──────┘  └───────────┬────────────┘
//	═══════╧═══ capture ════╧═════════════════════╧═════════════
func TestNodeEncryption(t *testing.T) {
	for _, m := range encryptionModes(wireGuard()) {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			if why := noEncryption(m); why != "" {
				t.Skip(why)
			}
			m.values = maps.Clone(m.values)
			m.values["encryption.nodeEncryption"] = true
			s := setup{mode: m, nodes: 3}
			s.fill()
			s.yaml = strings.Replace(s.manifests(), "name: node3", `name: node3, labels: {node-role.kubernetes.io/`+
				`control-plane: ""}`, 1)
			c := up(t, s)
			c.nodesEncrypted()
			seen := c.capture(marker("node"), marker("plain node"))
			before := c.outcome("node1", bpf.DatapathOutcomeFORWARD_ENCRYPT)
			c.talkOfNodes()
			check(t, c.Node("node2").RestartAgent(t.Context()))
			c.talkOfNodes()
			c.rotate("node1")
			c.talkOfNodes()
			counts := seen()
			if counts[0] > 0 {
				t.Errorf("%d frames have what nodes sent in plain text", counts[0])
			}
			if counts[1] == 0 {
				t.Error("of what node1 and node3 sent each other the capture has nothing")
			}
			if c.outcome("node1", bpf.DatapathOutcomeFORWARD_ENCRYPT) == before {
				t.Error("node1 has counted no packet as FORWARD_ENCRYPT")
			}
		})
	}
}

// nodesEncrypted waits until node1 and node2 encrypt what they send each other, and node3 only what is of pods.
func (c *cluster) nodesEncrypted() {
	c.t.Helper()
	for node, want := range map[string][]string{
		"node1": {"node2 true encrypted", "node3 true plain: it opts out"},
		"node2": {"node1 true encrypted", "node3 true plain: it opts out"},
		"node3": {"node1 true plain: this node opts out", "node2 true plain: this node opts out"},
	} {
		eventually(c.t, node+" encrypts", 20*time.Second, func() error {
			out, err := c.cli(node, "encrypt", "status")
			prefixes, err2 := c.cli(node, "route", "prefixes")
			err = errors.Join(err, err2)
			words := strings.Join(strings.Fields(out), " ")
			for _, w := range want {
				if err == nil && !strings.Contains(words, w) {
					err = errors.New("it does not say " + w)
				}
			}
			if err == nil && strings.Count(prefixes, " yes ") < len(c.stack.families)*4 {
				err = errors.New("prefixes are not encrypted")
			}
			if err != nil {
				return fmt.Errorf("%w: %s%s", err, out, prefixes)
			}
			return nil
		})
	}
}

// talkOfNodes has nodes talk to each other and to pods of each other.
func (c *cluster) talkOfNodes() {
	c.t.Helper()
	for _, f := range c.stack.families {
		for _, w := range [][2]string{{"node1", "node2"}, {"node2", "node1"}, {"node1", "a2"}, {"a2", "node1"},
			{"node3", "a1"}, {"a1", "node3"}} {
			c.errorf(f, w[0]+"→"+w[1], c.talk(w[0], w[1], f, marker("node")))
		}
		c.errorf(f, "node1→node2 of the wire", c.talkBound("node1", "node2", f, marker("node")))
		c.errorf(f, "node1→node3", c.talk("node1", "node3", f, marker("plain node")))
	}
}

// talkBound sends a datagram from a socket that is bound to the wire, of more than fits into an encrypted packet.
func (c *cluster) talkBound(from, to string, family int, text []byte) error {
	a, b := c.end(from), c.end(to)
	bound := func(fd int) error { return unix.BindToDevice(fd, "eth0") }
	client, server, err := connectUDP(c.t.Context(), a, b, b.addr(family), []option{bound}, nil)
	if err != nil {
		return err
	}
	defer server.Close()
	defer client.Close()
	data := bytes.Repeat(text, 100)
	if _, err := client.Write(data); err != nil {
		return err
	}
	if err := server.SetReadDeadline(soon()); err != nil {
		return err
	}
	got := make([]byte, 2*len(data))
	n, _, err := server.ReadFromUDPAddrPort(got)
	if err == nil && !bytes.Equal(got[:n], data) {
		err = errors.New("another datagram arrives")
	}
	return err
}
