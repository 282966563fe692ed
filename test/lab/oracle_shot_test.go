package labtest

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"myelin/test/packet"
)

// witnessPort is where witnesses listen: one of those that clients use.
const witnessPort = 41000

// shot is one attempt to reach a place; what it carries has a tag of its own.
type shot struct {
	*arena
	t        *testing.T
	f        int // family
	from, to string
	id       uint32 // of fragments
	tag      []byte
}

// shot prepares an attempt.
func (a *arena) shot(t *testing.T, f int, from, to string) *shot {
	a.shots++
	tag := binary.BigEndian.AppendUint64([]byte("shot"+fmt.Sprintf("%04d", a.shots%10000)), rand.Uint64())
	return &shot{arena: a, t: t, f: f, from: from, to: to, id: rand.Uint32() >> 16, tag: tag}
}

// payload is the tag as a layer.
func (s *shot) payload() string { return hexLayer(s.tag) }

func hexLayer(b []byte) string { return "hex:" + hex.EncodeToString(b) }

// eth is the layer by which a frame leaves its place for the next hop.
func (s *shot) eth() string {
	if strings.HasPrefix(s.from, "node") || s.from == "world" {
		return "eth " + s.from + " > " + s.node(s.to)
	}
	return "eth " + s.from + " > gw-" + s.from
}

// node is where a place is.
func (s *shot) node(place string) string {
	if place == "world" {
		return place
	}
	return "node" + place[len(place)-1:]
}

// ip is the layer between the two places.
func (s *shot) ip() string { return "ip " + s.from + " > " + s.to }

// text joins layers to a frame.
func (s *shot) text(layers ...string) []byte {
	s.t.Helper()
	line := strings.Join(layers, " | ")
	frame, err := packet.Parse(line, packet.Family(s.f), s.names)
	if err != nil {
		s.t.Fatalf("%s: %v", line, err)
	}
	return frame
}

// l4 is what follows the IP header of a packet between the places, with the right checksum.
func (s *shot) l4(layers ...string) []byte {
	s.t.Helper()
	line := strings.Join(append([]string{s.ip()}, layers...), " | ")
	b, err := packet.ParseIP(line, packet.Family(s.f), s.names)
	if err != nil {
		s.t.Fatalf("%s: %v", line, err)
	}
	return b[map[int]int{4: 20, 6: 40}[s.f]:]
}

// send has the frames leave the shot's place by its eth0.
func (s *shot) send(frames ...[]byte) {
	s.t.Helper()
	fd, err := s.rawSocket(s.from, "eth0", 0)
	check(s.t, err)
	defer unix.Close(fd)
	for _, frame := range frames {
		if _, err := unix.Write(fd, frame); err != nil {
			s.t.Fatalf("send a frame from %s: %v", s.from, err)
		}
	}
}

// plain sends a frame of these layers above the IP layer between the places.
func (s *shot) plain(layers ...string) {
	s.t.Helper()
	s.send(s.text(append([]string{s.eth(), s.ip()}, layers...)...))
}

// datagram sends a payload by an ordinary UDP socket of the shot's place.
func (s *shot) datagram(to netip.AddrPort, payload []byte) {
	s.t.Helper()
	unspecified := map[int]netip.Addr{4: netip.IPv4Unspecified(), 6: netip.IPv6Unspecified()}
	c, err := s.end(s.from).listenUDP(s.t.Context(), at(unspecified[family(to.Addr())], 0))
	check(s.t, err)
	defer c.Close()
	_, err = c.WriteToUDPAddrPort(payload, to)
	check(s.t, err)
}
