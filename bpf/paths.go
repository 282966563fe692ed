package bpf

import (
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// CachedPaths calls fn for the forwarding cache entries of each CPU that are in use, until it returns false.
func CachedPaths(m *ebpf.Map, fn func(cpu int, index uint32, p *DatapathCachedPath) bool) error {
	return eachOfCPUs(m, func(p *DatapathCachedPath) bool {
		return p.Path.Action != uint8(DatapathPathActionPATH_NONE)
	}, fn)
}

// eachOfCPUs calls fn for those rows of an array per CPU that are used, until it returns false.
func eachOfCPUs[Row any](m *ebpf.Map, used func(*Row) bool, fn func(cpu int, index uint32, r *Row) bool) error {
	return eachRow(m, func(i uint32, rows []Row) bool {
		for cpu := range rows {
			if used(&rows[cpu]) && !fn(cpu, i, &rows[cpu]) {
				return false
			}
		}
		return true
	})
}

// powerOfTwo returns the largest one that is not above n, at least 2: the table of paths is made of pairs.
func powerOfTwo(n uint32) uint32 {
	p := uint32(2)
	for p<<1 != 0 && p<<1 <= n {
		p <<= 1
	}
	return p
}

// translates reports whether packets to a port of the node may be for a NAT entry or a node port.
func translates(s *Settings, port uint16) bool {
	for _, r := range [][2]uint16{{s.NatPortMin, s.NatPortMax}, {s.LbPortMin, s.LbPortMax},
		{s.NodePortMin, s.NodePortMax}} {
		if r[0] <= port && port <= r[1] {
			return true
		}
	}
	return false
}

// Configure gives the programs their settings, which can't change any more once they are loaded, and adds those that
// follow from others and from the sizes of maps.
func Configure(spec *ebpf.CollectionSpec, s *Settings) error {
	// This makes an index of the table of paths of the top bits of a 64-bit hash.
	s.PathShift = uint32(64 - bits.TrailingZeros32(spec.Maps["paths"].MaxEntries))
	s.WireAny, s.WireExtra, s.WireMark = 0, 0, min(s.HostPolicy|s.NodeEncryption, 1)
	s.PodFast, s.WireFast, s.OuterFast = 0, 0, 0
	if s.Masquerade4|s.Masquerade6|s.Tunnel|s.StrictIngress == 0 {
		s.WireAny = 1
	}
	if s.Tunnel|s.Prefilter|s.Direct != 0 {
		s.WireExtra = 1
	}
	if s.LegacyRouting|s.Encryption == 0 {
		s.PodFast = 1
		if s.Prefilter|s.Direct == 0 {
			s.WireFast = 1
		}
	}
	if s.Encryption == 0 {
		s.OuterProto, s.OuterPort, s.Outer6 = 0, 0, 0
	}
	if s.Tunnel != 0 && s.Encryption|s.StrictIngress == 0 {
		s.OuterProto, s.OuterPort = unix.IPPROTO_UDP, s.TunnelPort
		if s.Tunnel == uint8(DatapathTunnelModeTUNNEL_IPV6) {
			s.Outer6 = 1
		}
	}
	if s.OuterProto != 0 && s.LegacyRouting|s.Prefilter|s.Direct|s.HostPolicy|s.NodeEncryption == 0 &&
		(s.OuterProto != unix.IPPROTO_UDP || !translates(s, s.OuterPort)) {
		s.OuterFast = 1
	}
	if s.TraceSlots != 0 {
		cpus, err := presentCPUs()
		if err != nil {
			return err
		}
		spec.Maps["traces"].MaxEntries = uint32(cpus) * (s.TraceSlots + 1)
		if s.DnsReports != 0 {
			spec.Maps["dns_reports"].MaxEntries = spec.Maps["traces"].MaxEntries
		}
	}
	if err := spec.Variables["config"].Set(*s); err != nil {
		return fmt.Errorf("set datapath configuration: %w", err)
	}
	return nil
}
