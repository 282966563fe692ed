package packet

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// pseudo is what a transport checksum covers of the IP header: RFC 9293
// section 3.1, RFC 8200 section 8.1. The zero value covers nothing.
type pseudo struct {
	src, dst netip.Addr
}

func (p pseudo) valid() bool { return p.src.IsValid() }

func (p pseudo) family() Family {
	if p.src.Is6() {
		return IPv6
	}
	return IPv4
}

func onesSum(b []byte, sum uint64) uint64 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	return sum
}

func fold(sum uint64) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// checksum is the Internet checksum (RFC 1071) of b, whose own checksum field
// at offset at is counted as zero.
func checksum(b []byte, at int) uint16 {
	sum := onesSum(b[:at], 0)
	return ^fold(onesSum(b[at+2:], sum))
}

// checksum is that of an upper-layer packet b of protocol proto.
func (p pseudo) checksum(b []byte, at int, proto uint8) uint16 {
	var sum uint64
	if p.valid() {
		sum = onesSum(p.src.AsSlice(), sum)
		sum = onesSum(p.dst.AsSlice(), sum)
		sum += uint64(len(b)) + uint64(proto)
	}
	sum = onesSum(b[:at], sum)
	return ^fold(onesSum(b[at+2:], sum))
}

// badSum turns a right checksum into a wrong one that is never zero, since
// zero in UDP means that there is none.
func badSum(right uint16) uint16 {
	if bad := right ^ 0x5555; bad != 0 {
		return bad
	}
	return 1
}

// sctpSum is the CRC32c of an SCTP packet, RFC 9260 appendix A, whose own
// field at offset 8 is counted as zero.
func sctpSum(b []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	crc := crc32.Update(0, table, b[:8])
	crc = crc32.Update(crc, table, make([]byte, 4))
	return crc32.Update(crc, table, b[12:])
}
