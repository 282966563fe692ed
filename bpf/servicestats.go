package bpf

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// CreatedAt is the clock tick of the entry's creation, as nat_entry_created in the datapath.
func (r *DatapathNatEntry) CreatedAt() uint64 { return uint64(r.CreatedHigh)<<32 | uint64(r.Created) }

// SetCreatedAt sets what CreatedAt returns, to 48 bits.
func (r *DatapathNatEntry) SetCreatedAt(tick uint64) {
	r.Created, r.CreatedHigh = uint32(tick), uint16(tick>>32)
}

// MemberValue is the value of an entry of members: the index of its counters, and whether external clients may get it.
func MemberValue(stat uint32, external bool) uint32 {
	value := stat << DatapathMemberBitsMEMBER_STAT_SHIFT
	if external {
		value |= uint32(DatapathMemberBitsMEMBER_EXTERNAL)
	}
	return value
}

// MemberStat is the index in an entry of members.
func MemberStat(value uint32) uint32 { return value >> DatapathMemberBitsMEMBER_STAT_SHIFT }

// BackendStat is the index of a Service's counters in an entry of backends. The zero BackendStat stands for none.
type BackendStat struct{ Service, Index uint32 }

// Counters are those that the entry names.
func (b *DatapathBackend) Counters() BackendStat {
	return BackendStat{Service: uint32(b.ServiceHigh)<<16 | uint32(b.ServiceLow), Index: uint32(b.Stat)}
}

// CountersOf are the counters that the entry of a Service's backend can name: there is no room for Services from 2^24
// on, which have none.
func CountersOf(service, index uint32) BackendStat {
	if index == 0 || service >= 1<<24 {
		return BackendStat{}
	}
	return BackendStat{Service: service, Index: index}
}

// SetCounters sets what Counters returns.
func (b *DatapathBackend) SetCounters(s BackendStat) {
	b.ServiceHigh, b.ServiceLow, b.Stat = uint8(s.Service>>16), uint16(s.Service), uint16(s.Index)
}

// Add adds the counters of another one.
func (s *DatapathServiceStat) Add(o *DatapathServiceStat) {
	for side := range s.Packets {
		s.Packets[side] += o.Packets[side]
		s.Bytes[side] += o.Bytes[side]
	}
	s.Flows += o.Flows
}

// Sub subtracts the counters of another one, which are not larger.
func (s *DatapathServiceStat) Sub(o *DatapathServiceStat) {
	for side := range s.Packets {
		s.Packets[side] -= o.Packets[side]
		s.Bytes[side] -= o.Bytes[side]
	}
	s.Flows -= o.Flows
}

// ServiceStat reads the counters of an index, summed over CPUs.
func (o *Objects) ServiceStat(index uint32) (sum DatapathServiceStat, err error) {
	var cpus []DatapathServiceStat
	if err := o.ServiceStats.Lookup(index, &cpus); err != nil {
		return sum, fmt.Errorf("read element %d of service_stats: %w", index, err)
	}
	for i := range cpus {
		sum.Add(&cpus[i])
	}
	return sum, nil
}

// ClearServiceStat sets the counters of an index to 0. Those of packets that are counted meanwhile may be lost.
func (o *Objects) ClearServiceStat(index uint32) error {
	if err := o.ServiceStats.Put(index, make([]DatapathServiceStat, ebpf.MustPossibleCPU())); err != nil {
		return fmt.Errorf("clear element %d of service_stats: %w", index, err)
	}
	return nil
}

// EachServiceStat calls fn for each index that has counted something, until it returns false.
func (o *Objects) EachServiceStat(fn func(index uint32, sum *DatapathServiceStat) bool) error {
	return eachRow(o.ServiceStats, func(i uint32, cpus []DatapathServiceStat) bool {
		var sum DatapathServiceStat
		for cpu := range cpus {
			sum.Add(&cpus[cpu])
		}
		return sum == (DatapathServiceStat{}) || fn(i, &sum)
	})
}
