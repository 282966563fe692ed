package labtest

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"myelin/bpf"
)

// blockedGroup is the CiliumCIDRGroup of blocked CIDRs.
func blockedGroup(prefixes ...string) string {
	return fmt.Sprintf("apiVersion: cilium.io/v2alpha1\nkind: CiliumCIDRGroup\nmetadata: {name: blocked}\nspec: "+
		"{externalCIDRs: [%s]}\n", `"`+strings.Join(prefixes, `", "`)+`"`)
}

// TestPrefilter keeps the world out of node1, by name of a group that changes, while node2 and what pods ask of the
// world go on; tc does it, or XDP.
//
//	┌─ node1 ───┐  ┌─ node2 ──┐
//	│ a1        │  │ a2       │
//	└──✗────────┘  └────┬─────┘
//	═══╧════════════════╧═══════ the world
func TestPrefilter(t *testing.T) {
	for _, c := range []struct {
		name, mode, acceleration string
		hook                     bpf.DatapathHook
	}{
		{"tc", "native", "disabled", bpf.DatapathHookHOOK_FROM_WIRE},
		{"tunnel", "vxlan", "disabled", bpf.DatapathHookHOOK_FROM_WIRE},
		{"XDP", "native", "testing-only", bpf.DatapathHookHOOK_FROM_WIRE_XDP},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := up(t, setup{mode: modeNamed(c.mode), pods: []string{"a"},
				values: map[string]any{"myelin.policy.prefilter": []string{"blocked"},
					"loadBalancer.acceleration": c.acceleration}})
			listener := p.listenOn(t, "node1")
			p.letIn(t, listener, true)
			p.apply("group", blockedGroup(p.aroundWorld()...))
			p.letIn(t, listener, false)
			if n := p.outcomeAt("node1", c.hook, bpf.DatapathOutcomeDROP_PREFILTER); n == 0 {
				t.Error("nothing was dropped by", c.name)
			}
			contains(t, "prefilter list", p.mustCLI("node1", "prefilter", "list"), "blocked", "2", "in force")
			contains(t, "status", p.mustCLI("node1", "status"), "Prefilter")
			p.ping(t, "a1", "a2")
			check(t, p.Node("node1").KillAgent(t.Context()))
			p.letIn(t, listener, false)
			check(t, p.Node("node1").StartAgent(t.Context(), nil))
			p.letIn(t, listener, false)
			p.apply("group", blockedGroup("203.0.113.0/24"))
			p.letIn(t, listener, true)
			p.apply("group", blockedGroup("0.0.0.0/0", "::/0"))
			p.letIn(t, listener, false)
			p.ping(t, "a1", "a2")
		})
	}
}

// aroundWorld are prefixes of 256 addresses around the world's.
func (c *cluster) aroundWorld() (list []string) {
	for _, f := range c.stack.families {
		a := c.end("world").addr(f)
		list = append(list, netip.PrefixFrom(a, a.BitLen()-8).Masked().String())
	}
	return list
}

// listenOn has a node listen for TCP.
func (c *cluster) listenOn(t *testing.T, node string) net.Listener {
	t.Helper()
	var l net.Listener
	check(t, c.end(node).Do(func() (err error) {
		l, err = net.Listen("tcp", ":0")
		return err
	}))
	t.Cleanup(func() { l.Close() })
	return l
}

// letIn waits until the world reaches node1 by both families, or by none.
func (c *cluster) letIn(t *testing.T, l net.Listener, want bool) {
	t.Helper()
	for _, f := range c.stack.families {
		eventually(t, fmt.Sprintf("IPv%d from the world gets through: %t", f, want), 20*time.Second, func() error {
			from := net.Dialer{Timeout: patience(time.Second),
				LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.end("world").addr(f), 0))}
			err := c.end("world").Do(func() error {
				conn, err := from.DialContext(t.Context(), "tcp", at(c.end("node1").addr(f), portOf(l.Addr())).String())
				if err == nil {
					conn.Close()
				}
				return err
			})
			if (err == nil) != want {
				return fmt.Errorf("got through: %t, %w", err == nil, errOr(err, "it was not refused"))
			}
			return nil
		})
	}
}

// ping has one pod send datagrams to another, until one arrives.
func (c *cluster) ping(t *testing.T, from, to string) {
	t.Helper()
	for _, f := range c.stack.families {
		server, err := c.end(to).listenUDP(t.Context(), netip.AddrPortFrom(c.end(to).addr(f), 0))
		check(t, err)
		eventually(t, fmt.Sprintf("IPv%d from %s to %s", f, from, to), 10*time.Second, func() error {
			client, err := c.end(from).listenUDP(t.Context(), netip.AddrPortFrom(c.end(from).addr(f), 0))
			if err != nil {
				return err
			}
			defer client.Close()
			if _, err = client.WriteToUDPAddrPort([]byte("ping"), at(c.end(to).addr(f),
				portOf(server.LocalAddr()))); err != nil {
				return err
			}
			check(t, server.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
			_, _, err = server.ReadFromUDPAddrPort(make([]byte, 16))
			return err
		})
		server.Close()
	}
}
