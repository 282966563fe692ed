package oracle

import (
	"fmt"
	"net/netip"
	"slices"
)

// Connection is a connection that stays open while policies change.
type Connection struct {
	// Flow is from its client to its server; where a Service is between them, the server is the backend.
	Flow
	// Translated: a node replaces the client's address by its own, and the server answers the node.
	Translated bool
}

// Denied explains why the client of a connection, or its server, may receive nothing by it under the present policies.
// It is empty if the policies allow it.
//
// The policies about the side that opened the connection decide on both directions. UDP differs: where a datagram of
// the server may begin a flow of its own, what the client sends belongs to that flow.
func (m *Model) Denied(c Connection, client bool) string {
	from, to := c.Src, c.Dst
	if client {
		from, to = to, from
	}
	if m.blocked(from, m.nodeOf(to)) {
		return fmt.Sprintf("its source is blocked: %s is in the denylist", from)
	}
	for _, node := range []string{m.nodeOf(c.Src), m.nodeOf(c.Dst)} {
		other := c.Proto == UDP && !c.Translated
		if node == "" || m.verdict(node, c.Flow) || other && m.verdict(node, c.reverse()) {
			continue
		}
		return fmt.Sprintf("policies of %s do not allow it: %s", node, m.World.Path(probe(c.Flow)).Why)
	}
	return ""
}

// blocked tells whether packets from an address are dropped where they arrive at a node; at the world none are.
func (m *Model) blocked(from netip.Addr, node string) bool {
	return node != "" && slices.ContainsFunc(m.Blocked, func(p netip.Prefix) bool { return p.Contains(from) })
}

// Opens tells whether the policies let the client open the connection, and use it.
func (m *Model) Opens(c Connection) bool {
	if m.blocked(c.Src, m.nodeOf(c.Dst)) || m.blocked(c.Dst, m.nodeOf(c.Src)) {
		return false
	}
	for _, node := range []string{m.nodeOf(c.Src), m.nodeOf(c.Dst)} {
		if node != "" && !m.verdict(node, c.Flow) {
			return false
		}
	}
	return true
}

// Goes has the model know that both sides of a connection send.
func (m *Model) Goes(c Connection) {
	m.Dialled(c.Flow)
	if c.Proto == UDP && !c.Translated {
		m.Dialled(c.reverse())
	}
}

// Has tells whether a packet is of the connection, and whether it is for the client, by the client's address and port.
func (c Connection) Has(f Flow) (has, client bool) {
	switch {
	case f.Proto != c.Proto:
		return false, false
	case f.Dst == c.Src && f.DPort == c.SPort:
		return true, true
	}
	return f.Src == c.Src && f.SPort == c.SPort, false
}
