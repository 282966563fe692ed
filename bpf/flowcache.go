package bpf

import "github.com/cilium/ebpf"

// cachedFlows calls fn for the entries of the per-CPU flow caches, until it returns false.
func cachedFlows(m *ebpf.Map, fn func(cpu int, index uint32, k *DatapathCachedFlow) bool) error {
	return eachOfCPUs(m, func(k *DatapathCachedFlow) bool { return k.ValidUntil != 0 }, fn)
}

// key is the key of the flow's row.
func (k *DatapathCachedFlow) key() DatapathFlowKey {
	key := DatapathFlowKey{Proto: k.Proto}
	from := k.Side & 1
	key.Addr[from], key.Addr[1-from] = k.Addr[0], k.Addr[1]
	key.Port[from], key.Port[1-from] = k.Port[0], k.Port[1]
	return key
}

// Pending is what is counted in the per-CPU flow caches and not yet flushed.
type Pending map[DatapathFlowKey][]DatapathCachedFlow

// ReadPending reads it. A packet may pass between this and the reading of a row, and then is in both or in none.
func ReadPending(d *Datapath) (Pending, error) {
	p := Pending{}
	err := cachedFlows(d.FlowCache, func(_ int, _ uint32, k *DatapathCachedFlow) bool {
		if k.Way[0].Packets != 0 || k.Way[1].Packets != 0 {
			p[k.key()] = append(p[k.key()], *k)
		}
		return true
	})
	return p, err
}

// Add completes the row with the key, as the datapath does when it flushes counters. The tick of the last packet is not
// kept: it is at most 30 ms from the row's own, or from the end of the copy's time.
func (p Pending) Add(key *DatapathFlowKey, row *DatapathFlow) {
	const over, reset = 0x01, 0x04 // FIN, RST
	for i := range p[*key] {
		k := &p[*key][i]
		for way := range k.Way {
			w, side := &k.Way[way], (k.Side^uint8(way))&1
			s := &row.Side[side]
			s.Packets += uint64(w.Packets)
			s.Bytes += w.Bytes
			s.TcpFlags |= w.TcpFlags
			if w.Packets != 0 && side != row.Origin&1 {
				row.Flags |= uint8(DatapathFlowFlagFLOW_REPLIED)
			}
		}
	}
	a, b := row.Side[0].TcpFlags, row.Side[1].TcpFlags
	if (a|b)&reset != 0 || a&b&over != 0 {
		row.Flags |= uint8(DatapathFlowFlagFLOW_CLOSING)
	}
}
