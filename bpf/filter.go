package bpf

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/cilium/ebpf"
)

// MarkOwn tells the datapath that an address may have a row in endpoints, so that it looks there before a wire's packet
// with that source goes on. Call it before the row is written. Marks are not taken back: what is left of an address
// that went costs a lookup for packets with its hash.
func (o *Objects) MarkOwn(a netip.Addr) error { return o.mark(o.OwnFilter, a) }

// MarkFrontend tells XDP that an address may have a row in frontends, like MarkOwn. XDP leaves packets to other
// addresses to tc, which asks the map.
func (o *Objects) MarkFrontend(a netip.Addr) error { return o.mark(o.FrontendFilter, a) }

func (o *Objects) mark(filter *ebpf.Map, a netip.Addr) error {
	memory, err := filter.Memory()
	if err != nil {
		return fmt.Errorf("address filter: %w", err)
	}
	bit := filterBit(a, filter.ValueSize())
	at := int64(bit / 64 * 8)
	var word [8]byte
	o.filterMu.Lock()
	defer o.filterMu.Unlock()
	if _, err := memory.ReadAt(word[:], at); err != nil {
		return fmt.Errorf("read address filter: %w", err)
	}
	binary.NativeEndian.PutUint64(word[:], binary.NativeEndian.Uint64(word[:])|1<<(bit%64))
	if _, err := memory.WriteAt(word[:], at); err != nil {
		return fmt.Errorf("write address filter: %w", err)
	}
	return nil
}

// filterBit is the bit of a filter of so many bytes that address_filter_has looks at: the top bits of addr_hash.
func filterBit(a netip.Addr, size uint32) uint64 {
	b := a.As16()
	sum := binary.LittleEndian.Uint64(b[:8]) + binary.LittleEndian.Uint64(b[8:])
	return sum * 0x9e3779b97f4a7c15 >> (64 - bits.TrailingZeros32(size*8))
}
