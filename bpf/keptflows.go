package bpf

import "github.com/cilium/ebpf"

// KeptFlows calls fn for the flows that CPUs have at hand, until it returns false.
func KeptFlows(m *ebpf.Map, fn func(cpu int, index uint32, k *DatapathKeptFlow) bool) error {
	return eachOfCPUs(m, func(k *DatapathKeptFlow) *DatapathPath { return &k.Way }, fn)
}

// Key is the key of the flow's row.
func (k *DatapathKeptFlow) Key() DatapathFlowKey {
	key := DatapathFlowKey{Proto: k.Proto}
	from := k.Side & 1
	key.Addr[from], key.Addr[1-from] = k.Src, k.Dst
	key.Port[from], key.Port[1-from] = k.Sport, k.Dport
	return key
}

// Pending is what CPUs have at hand and not yet added to the rows of flows.
type Pending map[DatapathFlowKey][]DatapathKeptFlow

// ReadPending reads it. A packet may pass between this and the reading of a row, and then is in both or in none.
func ReadPending(d *Datapath) (Pending, error) {
	p := Pending{}
	err := KeptFlows(d.KeptFlows, func(_ int, _ uint32, k *DatapathKeptFlow) bool {
		if k.Packets != 0 {
			p[k.Key()] = append(p[k.Key()], *k)
		}
		return true
	})
	return p, err
}

// Add completes the row with the key.
func (p Pending) Add(key *DatapathFlowKey, row *DatapathFlow) {
	for i := range p[*key] {
		k := &p[*key][i]
		s := &row.Side[k.Side&1]
		s.Packets += uint64(k.Packets)
		s.Bytes += k.Bytes
		s.TcpFlags |= k.TcpFlags
	}
}
