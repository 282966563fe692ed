package bpf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// The running kernel's verifier accepts the programs under every pair of settings: it sees a different program for
// each, since what is off is removed. Loads that differ in more than two settings at once add little: a program that
// the verifier refuses has almost always one feature that is missing, or two that don't fit together.
func TestVerifierTakesEveryConfiguration(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	must(t, rlimit.RemoveMemlock())
	for i, row := range everyConfiguration() {
		spec, err := LoadDatapath()
		must(t, err)
		for _, m := range spec.Maps {
			if m.Type != ebpf.RingBuf {
				m.MaxEntries = min(m.MaxEntries, 64)
			}
		}
		s := row.settings()
		must(t, Configure(spec, &s))
		var o Objects
		err = o.Assign(spec, nil)
		var refused *ebpf.VerifierError
		if errors.As(err, &refused) {
			t.Errorf("%s: %s", row, lastLines(refused.Log, 20))
			continue
		}
		must(t, err)
		checkEffort(t, row, &o.Programs)
		if i < 2 { // all off, all on: they differ from from_wire and to_wire by the Ethernet header only
			checkLate(t, &o, spec, &l3Programs{})
			checkLate(t, &o, spec, &ipsecPrograms{})
			checkLate(t, &o, spec, &proxyPrograms{})
		}
		o.Close()
	}
}

// checkLate loads the programs that few nodes need.
func checkLate(t *testing.T, o *Objects, spec *ebpf.CollectionSpec, programs io.Closer) {
	t.Helper()
	must(t, o.assignLate(spec, programs))
	must(t, programs.Close())
}

// maxVerified bounds the instructions that the verifier checks in a program, far below its limit of a million. It
// checks a loop's body once for each iteration: what branches in a body belongs in a function of its own.
const maxVerified = 150_000

func checkEffort(t *testing.T, row configuration, p *Programs) {
	for _, one := range []*ebpf.Program{p.FromPod, p.ToPod, p.FromWire, p.ToWire, p.FromWireXDP} {
		info, err := one.Info()
		must(t, err)
		if n, known := info.VerifiedInstructions(); known && n > maxVerified { // kernel 5.16 or later
			t.Errorf("%s: %s: verifier checked %d instructions, want at most %d", row, info.Name, n, maxVerified)
		}
	}
}

// choice is a setting that changes the programs, with its values; set gets the index of one.
type choice struct {
	name   string
	values int
	set    func(*Settings, uint8)
}

// The first two choices have a rule between them: only a family that is enabled is masqueraded.
func choices() []choice {
	return []choice{
		{"families", 3, func(s *Settings, v uint8) { s.Ipv4, s.Ipv6 = []uint8{1, 1, 0}[v], []uint8{1, 0, 1}[v] }},
		{"masquerade", 4, func(s *Settings, v uint8) { s.Masquerade4, s.Masquerade6 = v&1, v>>1 }},
		{"tunnel", 3, func(s *Settings, v uint8) { s.Tunnel, s.TunnelIfindex = v, 7 }},
		{"services", 2, func(s *Settings, v uint8) {
			if v == 1 {
				servicing(s)
			}
		}},
		{"direct", 4, func(s *Settings, v uint8) {
			if v > 0 {
				direct(s)
				s.LbDispatch = v - 1
			}
		}},
		{"hybrid", 2, func(s *Settings, v uint8) {
			if v == 1 && s.Direct == 1 {
				s.LbMode = uint8(DatapathLbModeLB_HYBRID)
			}
		}},
		{"policy_cut", 3, func(s *Settings, v uint8) { s.PolicyCut = v }},
		{"netkit", 2, func(s *Settings, v uint8) { s.Netkit = v }},
		{"encryption", 5, func(s *Settings, v uint8) {
			s.Encryption, s.StrictEgress, s.StrictIngress = min(v, 1), min(v/2, 1), min(v/2, 1)
			switch v {
			case 3:
				s.Ipsec = 1
			case 4:
				s.NodeEncryption, s.WireguardPort = 1, 51871
			}
		}},
		{"bandwidth", 3, func(s *Settings, v uint8) {
			s.Bandwidth = min(v, 1)
			if v == 2 && HaveDepartureTimes() {
				s.Edt = 1
			}
		}},
		{"legacy", 2, func(s *Settings, v uint8) { s.LegacyRouting = v }},
		{"flow_always", 2, func(s *Settings, v uint8) { s.FlowAlways = v }},
		{"policy", 2, func(s *Settings, v uint8) { s.Policy = v }},
		{"host_policy", 2, func(s *Settings, v uint8) { s.HostPolicy = v }},
		{"l7", 2, func(s *Settings, v uint8) { s.L7, s.L7Open, s.DnsCache, s.DnsReports = v, v, v, v }},
		{"quic", 2, func(s *Settings, v uint8) { s.Quic = v }},
		{"prefilter", 2, func(s *Settings, v uint8) { s.Prefilter = v }},
		{"monitor", 2, func(s *Settings, v uint8) { s.Monitor = v }},
		{"event_rate", 2, func(s *Settings, v uint8) { s.EventRate = uint32(v) }},
		{"socket_host_only", 2, func(s *Settings, v uint8) { s.SocketHostOnly = v }},
		{"bind_protection", 2, func(s *Settings, v uint8) { s.BindProtection = v }},
		{"no_backend_drop", 2, func(s *Settings, v uint8) { s.NoBackendDrop = v }},
		{"rss", 2, func(s *Settings, v uint8) {
			if v == 1 {
				rss(s)
			}
		}},
	}
}

// allowed says whether two choices may have these values together.
func allowed(a, va, b, vb int) bool {
	if a > b {
		a, va, b, vb = b, vb, a, va
	}
	return a != 0 || b != 1 || va == 0 || vb&^va == 0 // families 1 is IPv4, 2 is IPv6; masquerade has a bit for each
}

// configuration is an index into the values of each choice; -1 has not been chosen yet.
type configuration []int

func (c configuration) settings() Settings {
	s := settingsOf()
	s.Hz = 250
	for i, choice := range choices() {
		choice.set(&s, uint8(c[i]))
	}
	return s
}

func (c configuration) String() string {
	var words []string
	for i, choice := range choices() {
		words = append(words, fmt.Sprintf("%s %d", choice.name, c[i]))
	}
	return strings.Join(words, ", ")
}

// pair is two choices, the first with the lower index, and their values.
type pair struct{ a, va, b, vb int }

func pairOf(a, va, b, vb int) pair {
	if a > b {
		return pair{b, vb, a, va}
	}
	return pair{a, va, b, vb}
}

// everyConfiguration has each allowed pair of values in at least one configuration, in few of them: it begins with all
// off and all on, and then goes on with a pair that is missing, to which each other choice adds the value that covers
// most of what is missing.
func everyConfiguration() (list []configuration) {
	all := choices()
	missing, order := missingPairs(all)
	add := func(c configuration) {
		list = append(list, c)
		for a := range c {
			for b := a + 1; b < len(c); b++ {
				delete(missing, pair{a, c[a], b, c[b]})
			}
		}
	}
	off, on := make(configuration, len(all)), make(configuration, len(all))
	for i, choice := range all {
		on[i] = choice.values - 1
	}
	on[0] = 0 // the last of the families is IPv6 alone
	add(off)
	add(on)
	for _, p := range order {
		if missing[p] {
			add(complete(all, missing, p))
		}
	}
	return list
}

func missingPairs(all []choice) (missing map[pair]bool, order []pair) {
	missing = map[pair]bool{}
	for a := range all {
		for b := a + 1; b < len(all); b++ {
			for i := range all[a].values * all[b].values {
				if p := (pair{a, i % all[a].values, b, i / all[a].values}); allowed(p.a, p.va, p.b, p.vb) {
					missing[p] = true
					order = append(order, p)
				}
			}
		}
	}
	return missing, order
}

// complete returns a configuration with the pair.
func complete(all []choice, missing map[pair]bool, p pair) configuration {
	c := make(configuration, len(all))
	for i := range c {
		c[i] = -1
	}
	c[p.a], c[p.b] = p.va, p.vb
	for i, choice := range all {
		if c[i] >= 0 {
			continue
		}
		best := -1
		for v := range choice.values {
			if gain := c.gain(missing, i, v); gain > best {
				best, c[i] = gain, v
			}
		}
	}
	return c
}

// gain is how many missing pairs a value adds to what has been chosen; -1 if it isn't allowed.
func (c configuration) gain(missing map[pair]bool, i, v int) (n int) {
	for j, other := range c {
		switch {
		case j == i || other < 0:
		case !allowed(i, v, j, other):
			return -1
		case missing[pairOf(i, v, j, other)]:
			n++
		}
	}
	return n
}

// Few configurations have all pairs, and each of them is one that may be.
func TestEveryPairIsLoaded(t *testing.T) {
	all, list := choices(), everyConfiguration()
	missing, order := missingPairs(all)
	for _, c := range list {
		for a := range c {
			for b := a + 1; b < len(c); b++ {
				if !allowed(a, c[a], b, c[b]) {
					t.Errorf("%s: %s and %s don't go together", c, all[a].name, all[b].name)
				}
				delete(missing, pair{a, c[a], b, c[b]})
			}
		}
	}
	for _, p := range order {
		if missing[p] {
			t.Errorf("%s %d with %s %d is in no configuration", all[p.a].name, p.va, all[p.b].name, p.vb)
		}
	}
	if len(list) > 30 {
		t.Errorf("%d configurations: too many for each pair", len(list))
	}
	t.Logf("%d pairs in %d configurations", len(order), len(list))
}
