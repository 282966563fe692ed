package nat

import (
	"testing"

	"myelin/bpf"
	"myelin/bpf/bpftest"
)

// An entry of replies goes at the second search that finds no NAT entry, and not if its flow has one by then.
func TestOrphans(t *testing.T) {
	d := bpftest.LoadMaps(t, bpf.Settings{}, nil)
	request := func(port uint16) bpf.DatapathNatTuple { return bpf.DatapathNatTuple{Sport: port, Proto: 6} }
	for port := range uint16(3) {
		key := bpf.DatapathNatTuple{Dport: port, Proto: 6}
		if err := d.NatReplies.Put(key, bpf.DatapathNatReply{Request: request(port)}); err != nil {
			t.Fatal(err)
		}
	}
	o := &orphans{datapath: d}
	begin := func(port uint16) {
		if err := d.NatEntries.Put(request(port), bpf.DatapathNatEntry{}); err != nil {
			t.Fatal(err)
		}
	}
	begin(0)
	for i, want := range []int{3, 2} {
		if err := o.pass(); err != nil {
			t.Fatal(err)
		}
		n := 0
		err := bpf.Each(d.NatReplies, func(*bpf.DatapathNatTuple, *bpf.DatapathNatReply) bool { n++; return true })
		if err != nil || n != want {
			t.Errorf("search %d: %d entries are left, want %d; %v", i+1, n, want, err)
		}
		begin(1)
	}
}
