package bpf

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// The running kernel's verifier takes the programs under every configuration: it sees another program each time, since what is off is removed.
func TestVerifierTakesEveryConfiguration(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	must(t, rlimit.RemoveMemlock())
	for i, s := range everySettings() {
		spec, err := LoadDatapath()
		must(t, err)
		for _, m := range spec.Maps {
			if m.Type != ebpf.RingBuf {
				m.MaxEntries = min(m.MaxEntries, 64)
			}
		}
		s.Hz, s.Monitor, s.EventRate = 250, uint8(i%2), uint32(i%2)
		s.BindProtection, s.SocketHostOnly, s.Policy = uint8(i%2), uint8(i%2), uint8(i%2)
		must(t, Configure(spec, &s))
		var o Objects
		err = o.Assign(spec, nil)
		var refused *ebpf.VerifierError
		if errors.As(err, &refused) {
			t.Errorf("%s: %s", settingsText(s), lastLines(refused.Log, 20))
			continue
		}
		must(t, err)
		o.Close()
	}
}

func settingsText(s Settings) string {
	return fmt.Sprintf("tunnel %d, legacy %d, flow rows %d, masquerade %d %d, services %d direct %d by %d, families %d %d, monitor %d",
		s.Tunnel, s.LegacyRouting, s.FlowAlways, s.Masquerade4, s.Masquerade6, s.Services, s.Direct, s.LbDispatch, s.Ipv4, s.Ipv6, s.Monitor)
}

// even numbers of switches that are on have each pair of them in each state.
func even(bits int) bool { return (bits&1+bits>>1&1+bits>>2&1)%2 == 0 }

// everySettings are what makes other programs. A short run leaves out what has less in it than another one that it has, and of the rest has each pair of
// switches, by each way to other nodes.
func everySettings() (list []Settings) {
	for _, families := range [][2]uint8{{1, 1}, {1, 0}, {0, 1}} {
		for bits := range 3 * 2 * 2 * 2 {
			s := settingsOf()
			s.Ipv4, s.Ipv6 = families[0], families[1]
			s.LegacyRouting, s.FlowAlways, s.Tunnel = uint8(bits&1), uint8(bits>>1&1), uint8(bits>>3)
			s.TunnelIfindex = 7
			if bits>>2&1 == 1 {
				s.Masquerade4, s.Masquerade6 = s.Ipv4, s.Ipv6
			}
			if bits == 0 || bits == 23 || !testing.Short() {
				list = append(list, s)
			}
			if families == [2]uint8{1, 1} && (even(bits) || !testing.Short()) {
				s.Services = 1
				list = append(list, s)
			}
		}
	}
	for dispatch := range uint8(3) {
		s := settingsOf(servicing, direct, masquerading)
		s.LbDispatch = dispatch
		list = append(list, s, settingsOf(servicing, direct, tracking, func(s *Settings) { s.LbDispatch = dispatch }))
	}
	// Masquerade of one family only, of a node that has both.
	for _, one := range [][2]uint8{{1, 0}, {0, 1}} {
		s := settingsOf(tracking, tunnel4)
		s.Masquerade4, s.Masquerade6 = one[0], one[1]
		list = append(list, s)
	}
	return list
}
