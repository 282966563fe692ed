package labtest

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// rawSender sends IP packets that the caller has written, header and all, by the routes of its namespace.
type rawSender struct {
	fd int
	to unix.Sockaddr
}

// raw opens a sender in a place, for one destination.
func (e end) raw(to netip.Addr) (s *rawSender, err error) {
	err = e.Do(func() error {
		domain := unix.AF_INET6
		if to.Is4() {
			domain = unix.AF_INET
		}
		fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW) // implies IP_HDRINCL: raw(7)
		if err == nil {
			s = &rawSender{fd, sockaddr(at(to, 0))}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open raw socket in %s: %w", e.Name(), err)
	}
	return s, nil
}

func (s *rawSender) send(packet []byte) error { return unix.Sendto(s.fd, packet, 0, s.to) }

func (s *rawSender) Close() error { return unix.Close(s.fd) }

// ipPacket is an IP header and what follows it.
func ipPacket(src, dst netip.Addr, proto uint8, payload []byte) []byte {
	if dst.Is6() {
		b := binary.BigEndian.AppendUint32(make([]byte, 0, 40+len(payload)), 6<<28)
		b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
		b = append(b, proto, 64)
		return append(append(append(b, src.AsSlice()...), dst.AsSlice()...), payload...)
	}
	b := make([]byte, 20, 20+len(payload))
	b[0], b[8], b[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(payload)))
	copy(b[12:], src.AsSlice())
	copy(b[16:], dst.AsSlice())
	return append(b, payload...) // the kernel writes the checksum
}

// l4Checksum writes the checksum of a TCP or UDP packet, which includes the pseudo header, at an offset of the packet.
func l4Checksum(src, dst netip.Addr, proto uint8, packet []byte, offset int) {
	binary.BigEndian.PutUint16(packet[offset:], 0)
	sum := uint32(proto) + uint32(len(packet))
	for _, part := range [][]byte{src.AsSlice(), dst.AsSlice(), packet} {
		for i := 0; i+1 < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
		if len(part)%2 == 1 {
			sum += uint32(part[len(part)-1]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(packet[offset:], ^uint16(sum))
}

// synPacket is the first segment of a TCP connection.
func synPacket(src, dst netip.AddrPort, sequence uint32) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	binary.BigEndian.PutUint32(b[4:], sequence)
	b[12], b[13] = 5<<4, 0x02
	binary.BigEndian.PutUint16(b[14:], 65535)
	l4Checksum(src.Addr(), dst.Addr(), protoTCP, b, 16)
	return ipPacket(src.Addr(), dst.Addr(), protoTCP, b)
}

// udpFragments is one datagram in two fragments, of which the first one has the ports and 8 bytes of data.
func udpFragments(src, dst netip.AddrPort, id uint32, data []byte) (first, last []byte) {
	b := make([]byte, 8, 8+len(data))
	binary.BigEndian.PutUint16(b, src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(data)))
	b = append(b, data...)
	l4Checksum(src.Addr(), dst.Addr(), protoUDP, b, 6)
	const cut = 16
	return fragment(src.Addr(), dst.Addr(), id, 0, true, b[:cut]), fragment(src.Addr(), dst.Addr(), id, cut, false,
		b[cut:])
}

func fragment(src, dst netip.Addr, id uint32, offset int, more bool, data []byte) []byte {
	if dst.Is6() {
		header := []byte{protoUDP, 0}
		header = binary.BigEndian.AppendUint16(header, uint16(offset))
		if more {
			header[3] |= 1
		}
		header = binary.BigEndian.AppendUint32(header, id)
		return ipPacket(src, dst, unix.IPPROTO_FRAGMENT, append(header, data...))
	}
	b := ipPacket(src, dst, protoUDP, data)
	binary.BigEndian.PutUint16(b[4:], uint16(id))
	flags := uint16(offset / 8)
	if more {
		flags |= 0x2000
	}
	binary.BigEndian.PutUint16(b[6:], flags)
	return b
}

// paced calls send n times, evenly over a time, and returns how often it was called. It sends little at once, so that
// no queue on the way overflows, and catches up where it was not scheduled.
func paced(n int, over time.Duration, send func(i int) error) (sent int, err error) {
	const atOnce = 32
	begin := time.Now()
	for sent < n {
		due := int(float64(n) * float64(time.Since(begin)) / float64(over))
		for range min(due-sent, n-sent, atOnce) {
			if err := send(sent); err != nil {
				return sent, fmt.Errorf("packet %d: %w", sent, err)
			}
			sent++
		}
		if due-sent < atOnce {
			time.Sleep(time.Millisecond)
		} else if time.Since(begin) > 3*over {
			return sent, nil // the machine can't: what was sent has to do
		}
	}
	return sent, nil
}
