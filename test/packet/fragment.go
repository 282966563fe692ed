package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Fragment cuts a frame that holds an IPv4 packet without options, or an IPv6
// packet without extension headers, into frames whose IP packets are at most
// mtu bytes long and have the identification id, of which IPv4 uses the low 16
// bits. The checksum of the transport header stays that of the whole. DF is
// not looked at.
func Fragment(frame []byte, mtu int, id uint32) ([][]byte, error) {
	if len(frame) < 14 {
		return nil, errors.New("fragment packet: no Ethernet header")
	}
	link, pkt := frame[:14], frame[14:]
	cut, hdrLen, extra := fragment4, ip4Len, 0
	switch frameType := binary.BigEndian.Uint16(link[12:]); {
	case frameType == typeIP4 && len(pkt) >= ip4Len && pkt[0] == 0x45:
	case frameType == typeIP6 && len(pkt) >= ip6Len:
		cut, hdrLen, extra = fragment6, ip6Len, 8
	default:
		return nil, fmt.Errorf("fragment packet: type %#04x is not a plain IP packet", frameType)
	}
	room := (mtu - hdrLen - extra) &^ 7
	if room < 8 {
		return nil, fmt.Errorf("fragment packet: an MTU of %d leaves no room", mtu)
	}
	hdr, body := pkt[:hdrLen], pkt[hdrLen:]
	var frames [][]byte
	for off := 0; off == 0 || off < len(body); off += room {
		end := min(off+room, len(body))
		b := append([]byte{}, link...)
		b = append(b, cut(hdr, id, off, end < len(body), end-off)...)
		frames = append(frames, append(b, body[off:end]...))
	}
	return frames, nil
}

// fragment4 returns the header of the fragment of size bytes at off.
func fragment4(hdr []byte, id uint32, off int, mf bool, size int) []byte {
	b := append([]byte{}, hdr...)
	flags := uint16(off / 8)
	if mf {
		flags |= flagMF
	}
	binary.BigEndian.PutUint16(b[2:], uint16(ip4Len+size))
	binary.BigEndian.PutUint16(b[4:], uint16(id))
	binary.BigEndian.PutUint16(b[6:], flags)
	binary.BigEndian.PutUint16(b[10:], checksum(b, 10))
	return b
}

func fragment6(hdr []byte, id uint32, off int, mf bool, size int) []byte {
	b := append([]byte{}, hdr...)
	binary.BigEndian.PutUint16(b[4:], uint16(8+size))
	proto := uint32(b[6])
	b[6] = protoFrag
	f := fragment{id: id, off: uint16(off), mf: mf, nextProto: override{true, proto}}
	// Its encoding can't fail.
	ext, _ := f.encode(nil, place{})
	return append(b, ext...)
}
