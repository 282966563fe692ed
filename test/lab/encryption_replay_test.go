package labtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestEncryptionReplay captures what node1 sends to node2, and has the world send it again: no datagram arrives twice.
// Without encryption it does.
//
//	┌─ node1 ─────┐  ┌─ node2 ─────┐
//	│ a1          │  │ a2          │
//	└──────┬──────┘  └──────┬──────┘
//	═══════╧═══════ capture ╧══════════ world: sends it again
func TestEncryptionReplay(t *testing.T) {
	modes := []mode{modeNamed("native")}
	modes[0].name = "off"
	for _, list := range [][]mode{encryptionModes(wireGuard()), encryptionModes(byIPsec(t))} {
		for _, m := range []mode{list[0], list[3]} { // IPv4 and IPv6 between nodes
			m.name = m.values["encryption.type"].(string) + " " + m.name
			modes = append(modes, m)
		}
	}
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			if why := noEncryption(m); why != "" {
				t.Skip(why)
			}
			c := up(t, setup{mode: m, pods: []string{"a"}})
			off := m.name == "off"
			if !off {
				c.encrypted()
			}
			r := c.replayer()
			for _, f := range c.stack.families {
				r.exchange(f)
				if twice := r.again(f, 3); twice == 0 == off {
					t.Errorf("IPv%d: %d datagrams arrive again", f, twice)
				}
			}
			if m.values["encryption.type"] == "ipsec" {
				r.counted()
			}
			r.tap.end()
		})
	}
}

// replayer has what a1 has sent to a2.
type replayer struct {
	*cluster
	tap     *tap
	servers map[int]*net.UDPConn // by family
	clients map[int]*net.UDPConn

	mu     sync.Mutex
	frames [][]byte       // that node2 has received since forget
	sent   int            // by the world, in all
	times  map[string]int // how often a datagram has arrived
}

func (c *cluster) replayer() *replayer {
	r := &replayer{cluster: c, servers: map[int]*net.UDPConn{}, clients: map[int]*net.UDPConn{},
		times: map[string]int{}}
	r.tap = c.keepingTap(r.keep)
	for _, f := range c.stack.families {
		client, server, err := connectUDP(c.t.Context(), c.end("a1"), c.end("a2"), c.end("a2").addr(f), nil, nil)
		check(c.t, err)
		c.t.Cleanup(func() { server.Close(); client.Close() })
		r.clients[f], r.servers[f] = client, server
		go func() {
			buffer := make([]byte, 2048)
			for {
				n, err := server.Read(buffer)
				if err != nil {
					return
				}
				r.mu.Lock()
				r.times[string(buffer[:n])]++
				r.mu.Unlock()
			}
		}()
	}
	return r
}

// keep keeps frames to node2 that are encrypted, or have the text of datagrams.
func (r *replayer) keep(place string, frame []byte) {
	if place != "node2" || !encryptedTo(frame, r.Node("node2").Addrs()) && !bytes.Contains(frame, marker("pod")) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := slices.Clone(frame)
	complete(kept)
	r.frames = append(r.frames, kept)
}

// outer is the outermost IP packet of a frame: addresses, protocol, and what follows the header, nil if it is none.
func outer(frame []byte) (src, dst netip.Addr, proto byte, rest []byte) {
	const ip4, ip6 = 14 + 20, 14 + 40
	switch ethertype := binary.BigEndian.Uint16(frame[12:]); {
	case ethertype == unix.ETH_P_IP && len(frame) >= ip4+8:
		begin := 14 + int(frame[14]&15)*4
		if len(frame) < begin+8 {
			return src, dst, 0, nil
		}
		return netip.AddrFrom4([4]byte(frame[26:30])), netip.AddrFrom4([4]byte(frame[30:34])), frame[23],
			frame[begin:]
	case ethertype == unix.ETH_P_IPV6 && len(frame) >= ip6+8:
		return netip.AddrFrom16([16]byte(frame[22:38])), netip.AddrFrom16([16]byte(frame[38:54])), frame[20],
			frame[ip6:]
	}
	return src, dst, 0, nil
}

// encryptedTo reports whether a frame is of WireGuard or IPsec, and for one of the addresses.
func encryptedTo(frame []byte, addrs []netip.Addr) bool {
	_, dst, proto, rest := outer(frame)
	return slices.Contains(addrs, dst) &&
		(proto == unix.IPPROTO_ESP || proto == unix.IPPROTO_UDP && binary.BigEndian.Uint16(rest[2:]) == 51871)
}

// complete writes the checksum that a sender has left to its device, which has left it out.
func complete(frame []byte) {
	if src, dst, proto, rest := outer(frame); proto == unix.IPPROTO_UDP {
		l4Checksum(src, dst, proto, rest, 6)
	}
}

// exchange sends datagrams from a1 to a2, each of which arrives once, and keeps the frames that have them.
func (r *replayer) exchange(f int) {
	r.t.Helper()
	r.datagram(f, "first") // has sessions made
	r.mu.Lock()
	r.frames = nil
	r.mu.Unlock()
	for i := range 20 {
		r.datagram(f, fmt.Sprint(i))
	}
	eventually(r.t, "the capture has what was sent", 5*time.Second, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.frames) < 20 {
			return fmt.Errorf("%d frames", len(r.frames))
		}
		return nil
	})
}

// datagram sends one with a name, and others until one arrives.
func (r *replayer) datagram(f int, name string) {
	r.t.Helper()
	for attempt := range 10 {
		text := fmt.Sprintf("%sIPv%d %s, attempt %d", marker("pod"), f, name, attempt)
		_, _ = r.clients[f].Write([]byte(text))
		for end := time.Now().Add(patience(time.Second)); time.Now().Before(end); time.Sleep(time.Millisecond) {
			r.mu.Lock()
			n := r.times[text]
			r.mu.Unlock()
			if n > 0 {
				return
			}
		}
	}
	r.t.Fatalf("IPv%d: datagram %s does not arrive", f, name)
}

// again has the world send the frames so often, in the order in which they were, and counts datagrams that have arrived
// more than once.
func (r *replayer) again(f, times int) (twice int) {
	r.t.Helper()
	r.mu.Lock()
	frames := r.frames
	r.frames = nil
	r.mu.Unlock()
	fd, err := r.rawSocket("world", "eth0", 0)
	check(r.t, err)
	check(r.t, unix.SetNonblock(fd, false))
	defer unix.Close(fd)
	for range times {
		for _, frame := range frames {
			copy(frame[6:], []byte{0x02, 0x6d, 0x79, 0, 0xff, 0xff}) // the fabric would look for node1 at the world
			_, err := unix.Write(fd, frame)
			check(r.t, err)
		}
	}
	eventually(r.t, "what is sent again reaches node2", 5*time.Second, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.frames) < times*len(frames) {
			return fmt.Errorf("%d frames of %d times %d", len(r.frames), times, len(frames))
		}
		return nil
	})
	r.sent += times * len(frames)
	r.datagram(f, "last")
	time.Sleep(patience(200 * time.Millisecond))
	r.mu.Lock()
	defer r.mu.Unlock()
	for text, n := range r.times {
		if n > 1 && strings.Contains(text, fmt.Sprintf("IPv%d", f)) {
			twice++
		}
	}
	return twice
}

// counted: node2 says how many packets came again.
func (r *replayer) counted() {
	r.t.Helper()
	var rows []struct {
		Name    string
		Packets int
	}
	r.jsonCLI(&rows, "node2", "encrypt", "errors")
	counted := 0
	for _, row := range rows {
		if row.Name == "XfrmInStateSeqError" {
			counted = row.Packets
		}
	}
	if counted < r.sent {
		r.t.Errorf("XFRM counts %d packets that came again, want %d", counted, r.sent)
	}
	_, metrics := r.health(r.t, "node2", "/metrics")
	contains(r.t, "/metrics", metrics,
		fmt.Sprintf("myelin_ipsec_xfrm_error{error=\"state_sequence\",type=\"inbound\"} %d\n", counted))
	var states []struct{ Replayed int }
	r.jsonCLI(&states, "node2", "encrypt", "states")
	replayed := 0
	for _, s := range states {
		replayed += s.Replayed
	}
	if replayed < r.sent {
		r.t.Errorf("states count %d packets that came again, want %d", replayed, r.sent)
	}
}
