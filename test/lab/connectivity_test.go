package labtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// way is a client, a server, and the client's address as the server sees it.
type way struct {
	from, to string
	as       string // whose address the other end sees
}

// ways are all that the datapath has to know. A node may use its gateway's address for itself where it talks to pods.
func ways() []way {
	return []way{
		{"a1", "b1", "a1"}, {"b1", "a1", "b1"},
		{"a1", "a2", "a1"}, {"a2", "a1", "a2"},
		{"a1", "node1", "a1"}, {"a1", "node2", "a1"},
		{"node1", "a1", "node1"}, {"node1", "a2", "node1"}, {"node2", "a1", "node2"},
		{"a1", "world", "node1"}, {"a2", "world", "node2"},
		{"node1", "world", "node1"},
	}
}

// TestConnectivity sends TCP, UDP, ICMP and, where the kernel has it, SCTP each way, and looks at the source address
// that arrives.
//
//	┌─ node1 ─────┐  ┌─ node2 ─────┐
//	│ a1  b1      │  │ a2  b2      │
//	└──────┬──────┘  └──────┬──────┘
//	═══════╧════ world ═════╧═══════
func TestConnectivity(t *testing.T) {
	for _, m := range modes() {
		for _, s := range stacks() {
			if slow() > 1 && s.name != "dual" && m.name != "native" && m.name != "vxlan6" {
				// a program for each family alone is loaded in two modes there; the others are tried where it is quick
				continue
			}
			t.Run(m.name+"/"+s.name, func(t *testing.T) {
				t.Parallel()
				c := up(t, setup{mode: m, stack: s})
				for _, f := range s.families {
					for _, w := range ways() {
						c.try(w, f)
					}
				}
			})
		}
	}
}

// try sends everything one way.
func (c *cluster) try(w way, family int) {
	c.t.Helper()
	from, to := c.end(w.from), c.end(w.to)
	dst := to.addr(family)
	for _, p := range []struct {
		name string
		send func(context.Context) (netip.Addr, error)
	}{
		{"ICMP", func(ctx context.Context) (netip.Addr, error) { return ping(ctx, from, to, dst, 56) }},
		{"UDP", func(ctx context.Context) (netip.Addr, error) { return udp(ctx, from, to, dst, 1000) }},
		{"TCP", func(ctx context.Context) (netip.Addr, error) { return tcp(ctx, from, to, dst, fewer(4<<20)) }},
		{"SCTP", func(ctx context.Context) (netip.Addr, error) { return sctp(ctx, from, to, dst) }},
	} {
		seen, err := p.send(c.t.Context())
		what := fmt.Sprintf("IPv%d %s %s→%s", family, p.name, w.from, w.to)
		if errors.Is(err, unix.EPROTONOSUPPORT) && p.name == "SCTP" {
			c.t.Logf("%s: not tried, this kernel has none; Debian's, in the VM, have it", what)
			continue
		}
		if err != nil {
			c.t.Errorf("%s: %v", what, err)
			continue
		}
		if want := c.addressesOf(w, family); !slices.Contains(want, seen) {
			c.t.Errorf("%s arrives from %s, want %s", what, seen, want)
		}
	}
}

// addressesOf are those that the sender may be seen by: the world sees one of a node's only.
func (c *cluster) addressesOf(w way, family int) []netip.Addr {
	list := []netip.Addr{c.end(w.as).addr(family)}
	var node int
	if n, _ := fmt.Sscanf(w.as, "node%d", &node); n == 1 && w.to != "world" {
		list = append(list, gateway(node, family))
	}
	return list
}
