package userspace

import (
	"encoding/binary"
	"slices"
	"testing"

	"golang.zx2c4.com/wireguard/tun"
)

// datagram is a UDP datagram over IPv6 without a checksum, to which one that is 0 fits if fits is set. options are
// bytes of a destination options header.
func datagram(fits bool, options int, data ...byte) []byte {
	udp := append([]byte{0x9C, 0x40, 0x00, 0x35, 0, byte(udpHeader + 2 + len(data)), 0, 0, 0, 0}, data...)
	p := make([]byte, ipv6Header+options, ipv6Header+options+len(udp))
	p[0], p[5], p[6], p[7], p[8], p[39] = 0x60, byte(options+len(udp)), 17, 64, 0xFD, 7
	if options > 0 {
		p[6], p[ipv6Header], p[ipv6Header+1] = 60, 17, byte(options/8-1)
	}
	if fits {
		sum := sum16(p[8:ipv6Header]) + sum16(udp) + uint64(len(udp)) + 17
		for sum > 0xFFFF {
			sum = sum>>16 + sum&0xFFFF
		}
		binary.BigEndian.PutUint16(udp[udpHeader:], uint16(0xFFFF-sum))
	}
	return append(p, udp...)
}

// oneRead is a TUN device that a packet is read from.
type oneRead struct {
	tun.Device
	packet []byte
}

func (d *oneRead) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	sizes[0] = copy(bufs[0][offset:], d.packet)
	return 1, nil
}

// TestZeroChecksum: the checksum 0 is read as 0xFFFF where it is the datagram's.
func TestZeroChecksum(t *testing.T) {
	t.Parallel()
	other, short, tcp := datagram(true, 0), datagram(true, 0), datagram(true, 0)
	other[47], tcp[6] = 1, 6
	ipv4 := datagram(true, 0)
	ipv4[0] = 0x45
	beyond := datagram(true, 8)
	beyond[ipv6Header+1] = 200
	for name, test := range map[string]struct {
		packet []byte
		at     int // of the checksum that is changed; 0: none is
	}{
		"checksum 0":             {datagram(true, 0), 46},
		"odd length":             {datagram(true, 0, 1, 2, 3), 46},
		"options":                {datagram(true, 16, 1, 2), 62},
		"no checksum":            {datagram(false, 0, 5), 0},
		"another checksum":       {other, 0},
		"TCP":                    {tcp, 0},
		"IPv4":                   {ipv4, 0},
		"cut":                    {short[:45], 0},
		"nothing":                {nil, 0},
		"options beyond the end": {beyond, 0},
	} {
		want := slices.Clone(test.packet)
		if test.at > 0 {
			want[test.at], want[test.at+1] = 0xFF, 0xFF
		}
		buf, sizes := make([]byte, 200), make([]int, 1)
		d := &checksummed{&oneRead{packet: test.packet}}
		n, err := d.Read([][]byte{buf}, sizes, 16)
		if err != nil || n != 1 || !slices.Equal(buf[16:16+sizes[0]], want) {
			t.Errorf("%s: got %x, %v; want %x", name, buf[16:16+sizes[0]], err, want)
		}
	}
}
