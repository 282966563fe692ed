package labtest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestHostStack counts what the node's own stack forwards while 1,000 datagrams and their answers pass: nothing with
// eBPF host routing, everything with bpf.hostLegacyRouting.
//
//	┌─ node1 ───────────────┐  ┌─ node2 ───────────────┐
//	│ a1  b1   ForwDatagrams│  │ a2       ForwDatagrams│
//	└──────┬────────────────┘  └──────┬────────────────┘
//	═══════╧═════════ world ══════════╧═════════════════
func TestHostStack(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: m})
			for _, f := range c.stack.families {
				for _, pair := range [][2]string{{"a1", "b1"}, {"a1", "a2"}, {"a1", "world"}} {
					c.countForwarded(pair[0], pair[1], f)
				}
			}
		})
	}
}

func (c *cluster) countForwarded(from, to string, family int) {
	c.t.Helper()
	const packets = 1000
	what := fmt.Sprintf("IPv%d %s→%s", family, from, to)
	before1, before2 := c.forwarded("node1", family), c.forwarded("node2", family)
	if err := c.manyDatagrams(from, to, family, packets); err != nil {
		c.t.Errorf("%s: %v", what, err)
		return
	}
	grew1, grew2 := c.forwarded("node1", family)-before1, c.forwarded("node2", family)-before2
	if c.mode.name != "legacy" {
		// In tunnel mode, too, the inner packet is never forwarded: the outer one is the host's own.
		if grew1 != 0 || grew2 != 0 {
			c.t.Errorf("%s: the stacks of node1 and node2 forwarded %d and %d packets, want none", what, grew1, grew2)
		}
		return
	}
	if grew1 < 2*packets || (to == "a2" && grew2 < 2*packets) {
		c.t.Errorf("%s: the stacks of node1 and node2 forwarded %d and %d packets, want %d and an answer each", what,
			grew1, grew2, packets)
	}
}

// manyDatagrams sends n datagrams, each after the answer to the one before.
func (c *cluster) manyDatagrams(from, to string, family, n int) error {
	a, b := c.end(from), c.end(to)
	server, err := b.listenUDP(c.t.Context(), at(b.addr(family), 0), deep())
	if err != nil {
		return err
	}
	defer server.Close()
	go answerAll(server)
	client, err := a.dialUDP(c.t.Context(), netip.AddrPort{}, at(b.addr(family), portOf(server.LocalAddr())), deep())
	if err != nil {
		return err
	}
	defer client.Close()
	buf := make([]byte, 100)
	for answered := 0; answered < n; {
		if err := client.SetDeadline(time.Now().Add(patience(time.Second))); err != nil {
			return err
		}
		if _, err := client.Write(buf); err != nil {
			return err
		}
		if _, err := client.Read(buf); err != nil {
			return fmt.Errorf("answer %d of %d: %w", answered, n, err)
		}
		answered++
	}
	return nil
}

// answerAll sends back what comes until the socket is closed.
func answerAll(c *net.UDPConn) {
	buf := make([]byte, 65536)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = c.WriteToUDPAddrPort(buf[:n], from) // a loss shows at the other end
		}
	}
}

// forwarded is how many packets the stack of a node has forwarded.
func (c *cluster) forwarded(node string, family int) int {
	c.t.Helper()
	if family == 6 {
		return c.snmp(c.Node(node), "Ip6OutForwDatagrams")
	}
	return c.snmp(c.Node(node), "Ip: ForwDatagrams")
}

// snmp reads a counter of the kernel in a network namespace: of IPv4 if its name has a colon, otherwise of IPv6.
func (c *cluster) snmp(in place, name string) int {
	c.t.Helper()
	var n int
	err := in.Do(func() (err error) {
		if proto, short, ok := strings.Cut(name, ": "); ok {
			n, err = snmp4(proto+":", short)
		} else {
			n, err = snmp6(name)
		}
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// snmp4 reads a value from the pair of lines of a protocol that names and counts them.
func snmp4(proto, name string) (int, error) {
	data, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		return 0, err
	}
	var names, values []string
	for line := range bytes.Lines(data) {
		if f := strings.Fields(string(line)); f[0] == proto {
			names, values = values, f
		}
	}
	if i := slices.Index(names, name); i >= 0 && i < len(values) {
		return strconv.Atoi(values[i])
	}
	return 0, fmt.Errorf("no %s of %s", name, proto)
}

func snmp6(name string) (int, error) {
	data, err := os.ReadFile("/proc/thread-self/net/snmp6")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(data) {
		if f := strings.Fields(string(line)); f[0] == name {
			return strconv.Atoi(f[1])
		}
	}
	return 0, fmt.Errorf("no %s", name)
}
