package bpf

import (
	"testing"

	"golang.org/x/sys/unix"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// TestAffinityOfPod: what a pod is called where packets are translated is what it is called at its sockets, if that is
// known.
func TestAffinityOfPod(t *testing.T) {
	w := newWorld(t, settingsOf(servicing), onlyForwarding)
	w.fillServices(t)
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		defer w.enter(t)()
		vip := families(worldNames()["vip"])[map[packet.Family]int{packet.IPv4: 0, packet.IPv6: 1}[f]]
		key := DatapathFrontendKey{Addr: Addr(vip), Port: be16(portB), Proto: unix.IPPROTO_TCP}
		var sticky DatapathFrontend
		must(t, w.Frontends.Lookup(key, &sticky))
		sticky.Affinity = 3600
		must(t, w.Frontends.Put(key, sticky))
		link, pod := uint32(w.index["linka"]), families(worldNames()["a"])[map[packet.Family]int{packet.IPv4: 0,
			packet.IPv6: 1}[f]]
		for cookie, want := range map[uint64]DatapathAddr{0: Addr(pod),
			77: {B: [16]uint8{0: 77, 8: map[packet.Family]uint8{packet.IPv4: 0, packet.IPv6: 1}[f]}}} {
			w.forget(t)
			var row DatapathPodLink
			must(t, w.PodLinks.Lookup(link, &row))
			row.NetnsCookie = cookie
			must(t, w.PodLinks.Put(link, row))
			w.run(t, f, step{at: "from_pod linka", in: `eth a > gw | ip a > vip | tcp 40000 > 80 S`,
				want: "FORWARD_POD"})
			var got []DatapathAddr
			must(t, Each(w.Affinities, func(k *DatapathAffinityKey, _ *DatapathAffinity) bool {
				got = append(got, k.Client)
				return true
			}))
			if len(got) != 1 || got[0] != want {
				t.Errorf("with cookie %d, affinity is kept for %v, want %v", cookie, got, want)
			}
		}
	})
}
