package bpf

import (
	"encoding/binary"
	"fmt"
	"testing"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// The header checksum has to be right for every value that it can have before the TTL is taken down.
func TestTTLChecksumIsRight(t *testing.T) {
	w := newWorld(t, settingsOf(), onlyForwarding)
	defer w.enter(t)()
	step := 1
	if testing.Short() {
		step = 251
	}
	for id := 0; id < 1<<16; id += step {
		in := packettest.Frame(t, packet.IPv4, worldNames(),
			fmt.Sprintf(`eth a > gw | ip4 a > b id %d | udp 1 > 2`, id))
		r, err := packettest.Run(w.FromPod, in, packettest.Options{Ifindex: uint32(w.index["linka"])})
		must(t, err)
		if sum := onesSum(r.Out[14:34]); sum != 0xffff || r.Out[14+8] != 63 {
			t.Fatalf("id %d: the header %x sums up to %#x, want 0xffff", id, r.Out[14:34], sum)
		}
	}
}

// onesSum is the sum of RFC 1071, 0xffff over what has a right checksum.
func onesSum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// A UDP checksum that comes out as 0 is sent as 0xffff (RFC 768): 0 would say that there is none, which IPv6 refuses.
func TestMasqueradedUDPChecksumIsNeverZero(t *testing.T) {
	w := newWorld(t, settingsOf(masquerading), onlyForwarding)
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		defer w.enter(t)()
		w.forget(t)
		at := map[packet.Family]int{packet.IPv4: 14 + 20 + 6, packet.IPv6: 14 + 40 + 6}[f]
		found := false
		for x := 0; x < 1<<16; x++ {
			want := packettest.Frame(t, f, worldNames(),
				fmt.Sprintf(`eth node > router | ip node > world ttl 63 | udp 50000 > 53 | hex:%04x`, x))
			if binary.BigEndian.Uint16(want[at:]) != 0xffff {
				continue
			}
			found = true
			w.run(t, f, step{at: "from_pod linka",
				in: fmt.Sprintf(`eth a > gw | ip a > world | udp 40000 > 53 | hex:%04x`, x), want: "FORWARD_RESOLVE",
				out: hexFrame(want)})
			break
		}
		if !found {
			t.Fatal("no payload has a checksum of 0")
		}
	})
}
