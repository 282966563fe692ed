package packet

import (
	"bytes"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// gopacket computes every length and checksum again, by code that is not ours.
// The rows are no shorter than 60 bytes, to which it pads a frame.
func TestGopacketAgrees(t *testing.T) {
	for _, text := range []string{
		`eth pod1 > gw | ip pod1 > world | tcp 40000 > 80 SA seq 1 ack 9 mss 1400 | "hello"`,
		`eth pod1 > gw | ip pod1 > world | tcp 1 > 2 FRPUECN win 1 urg 7 | len 30`,
		`eth pod1 > gw | ip pod1 > world ttl 3 tos 8 | udp 40000 > 5300 | len 101`,
		`eth pod1 > gw vlan 9 | ip pod1 > world | udp 40000 > 5300 | len 31`,
		`eth pod1 > gw | ip pod1 > world | sctp 1 > 2 vtag 0x01020304 data | len 32`,
		`eth pod1 > gw | ip pod1 > world | icmp echo id 7 seq 9 | len 33`,
		`eth pod1 > gw | ip pod1 > world | icmp unreachable port | ip world > pod1 | udp 53 > 40000 | "odd"`,
		`eth pod1 > gw | ip pod1 > world | icmp too-big mtu 1280 | ip world > pod1 | udp 53 > 40000 | "odd"`,
		`eth pod1 > gw | ip4 pod1 > world id 7 df opts 01010100 | udp 1 > 2 | len 31`,
		`eth pod1 > gw | ip4 pod1 > world id 7 off 1480 mf proto udp | len 32`,
		`eth pod1 > broadcast | arp who-has gw tell pod1 | pad 18`,
		`eth gw > pod1 | arp gw is-at gw to pod1 | pad 18`,
		`eth pod1 > gw | ip6 pod1 > world flow 7 | tcp 1 > 2 S`,
		`eth gw > pod1 | ip6 gw > pod1 ttl 255 | nd advert gw router solicited override lladdr gw`,
		`eth pod1 > solicited:gw | ip6 pod1 > solicited:gw ttl 255 | nd solicit gw lladdr pod1`,
		`eth gw > pod1 | ip gw > pod1 | udp 9 > 4789 | vxlan vni 5 | eth pod1 > gw | ip pod1 > world | udp ` +
			`1 > 2 | len 31`,
		`eth gw > pod1 | ip gw > pod1 | udp 9 > 6081 | geneve vni 5 | eth pod1 > gw | ip pod1 > world | udp ` +
			`1 > 2 | len 31`,
	} {
		names := testNames()
		for _, f := range []Family{IPv4, IPv6} {
			ours, err := Parse(text, f, names)
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := serializeAgain(ours)
			if err != nil {
				t.Errorf("%s (%s): %v", text, f, err)
				continue
			}
			if !bytes.Equal(ours, theirs) {
				t.Errorf("%s (%s)\nours   %x\ntheirs %x\n%s", text, f, ours, theirs, Diff(theirs, ours, names))
			}
		}
	}
}

func serializeAgain(b []byte) ([]byte, error) {
	p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
	if e := p.ErrorLayer(); e != nil {
		return nil, e.Error()
	}
	var ls []gopacket.SerializableLayer
	var ip gopacket.NetworkLayer
	for _, l := range p.Layers() {
		if n, ok := l.(gopacket.NetworkLayer); ok {
			ip = n
		}
		if c, ok := l.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			if err := c.SetNetworkLayerForChecksum(ip); err != nil {
				return nil, err
			}
		}
		s, ok := l.(gopacket.SerializableLayer)
		if !ok {
			s = gopacket.Payload(l.LayerContents())
		}
		ls = append(ls, s)
	}
	buf := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...)
	return buf.Bytes(), err
}
