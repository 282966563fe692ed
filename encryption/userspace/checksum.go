package userspace

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// checksummed is a TUN device from which UDP checksums are read as RFC 768 wants them. The kernel leaves the checksum
// of most packets to the reader, which tun computes; if it is 0, tun writes 0, which says that there is none, and not
// 0xFFFF. Over IPv6 such a datagram, one of 65,535, is dropped where it arrives (RFC 8200, section 8.1). Over IPv4 it
// is taken.
type checksummed struct{ tun.Device }

// Read implements tun.Device.
func (d *checksummed) Read(bufs [][]byte, sizes []int, offset int) (n int, err error) {
	n, err = d.Device.Read(bufs, sizes, offset)
	for i := range n {
		fixZeroChecksum(bufs[i][offset : offset+sizes[i]])
	}
	return n, err
}

const (
	ipv6Header = 40
	udpHeader  = 8
)

// fixZeroChecksum writes 0xFFFF as the checksum of a UDP datagram over IPv6 that has 0 where 0 is right. Another one
// with 0 was sent without a checksum, as some tunnels do (RFC 6935), and stays as it is.
func fixZeroChecksum(packet []byte) {
	if len(packet) < ipv6Header+udpHeader || packet[0]>>4 != 6 {
		return
	}
	next, udp := packet[6], packet[ipv6Header:]
	for next == unix.IPPROTO_HOPOPTS || next == unix.IPPROTO_DSTOPTS {
		size := 8 * (1 + int(udp[1]))
		if len(udp) < size+udpHeader {
			return
		}
		next, udp = udp[0], udp[size:]
	}
	if next != unix.IPPROTO_UDP || udp[6] != 0 || udp[7] != 0 {
		return
	}
	sum := sum16(packet[8:ipv6Header]) + sum16(udp) + uint64(len(udp)) + unix.IPPROTO_UDP
	for sum > 0xFFFF {
		sum = sum>>16 + sum&0xFFFF
	}
	if sum == 0xFFFF {
		udp[6], udp[7] = 0xFF, 0xFF
	}
}

// sum16 adds up 16-bit words.
func sum16(b []byte) (sum uint64) {
	for ; len(b) > 1; b = b[2:] {
		sum += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	return sum
}
