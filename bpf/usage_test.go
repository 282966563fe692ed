package bpf_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"myelin/bpf"
	"myelin/bpf/bpftest"
)

func TestUsage(t *testing.T) {
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1}, map[string]uint32{"flows": 4096})
	d.Maps = []bpf.MapStatus{{Name: "flows", Adopted: true}, {Name: "wires", Note: "new"}}
	fill(t, d.Flows, 3000)
	key := bpf.Prefix(netip.MustParsePrefix("10.0.0.0/8"))
	if err := d.Prefixes.Put(key, bpf.DatapathPrefix{}); err != nil {
		t.Fatal(err)
	}
	now := time.Unix(0, 0)
	u := bpf.Usages{Datapath: d, Now: func() time.Time { return now }}
	read := func() map[string]*bpf.Usage {
		t.Helper()
		list, err := u.Read()
		if err != nil {
			t.Fatal(err)
		}
		byName := map[string]*bpf.Usage{}
		for _, x := range list {
			byName[x.Name] = x
			if x.Bytes == 0 && x.Entries != 0 {
				t.Errorf("%s costs nothing", x.Name)
			}
			if len(x.TableRow()) != len(x.TableHeader()) {
				t.Errorf("%d cells under %d columns", len(x.TableRow()), len(x.TableHeader()))
			}
		}
		if len(byName) != len(d.MapsByName()) {
			t.Errorf("%d maps, want %d", len(byName), len(d.MapsByName()))
		}
		return byName
	}
	got := read()
	// The LRU gives away rows of other CPUs' lists before it is full.
	flows := got["flows"]
	if flows.Entries < 2000 || flows.Entries > 3000 || flows.Max != 4096 || !flows.Adopted ||
		flows.Pressure() != float64(flows.Entries)/4096 {
		t.Errorf("flows: %+v", flows)
	}
	if got["prefixes"].Entries != 1 || got["wires"].Entries != 0 || got["epochs"].Entries != -1 ||
		got["epochs"].Pressure() != -1 {
		t.Errorf("prefixes %+v, wires %+v, epochs %+v", got["prefixes"], got["wires"], got["epochs"])
	}
	if err := d.Prefixes.Delete(key); err != nil {
		t.Fatal(err)
	}
	now = now.Add(9 * time.Second)
	if read()["prefixes"].Entries != 1 {
		t.Error("counted again before ten seconds")
	}
	now = now.Add(time.Second)
	if read()["prefixes"].Entries != 0 {
		t.Error("not counted again after ten seconds")
	}
}

func fill(t *testing.T, m *ebpf.Map, n int) {
	t.Helper()
	keys, rows := make([]bpf.DatapathFlowKey, n), make([]bpf.DatapathFlow, n)
	for i := range n {
		keys[i].Port = [2]uint16{bpf.Port(uint16(i)), 1}
		rows[i].Seen = uint32(i)
	}
	if _, err := m.BatchUpdate(keys, rows, nil); err != nil {
		t.Fatal(err)
	}
}

func TestEach(t *testing.T) {
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1}, map[string]uint32{"flows": 16384})
	const n = 3000
	fill(t, d.Flows, n)
	seen := map[uint16]bool{}
	if err := bpf.Each(d.Flows, func(k *bpf.DatapathFlowKey, r *bpf.DatapathFlow) bool {
		if r.Seen != uint32(bpf.Port(k.Port[0])) || seen[k.Port[0]] {
			t.Errorf("row %d comes with key %d, or twice", r.Seen, bpf.Port(k.Port[0]))
		}
		seen[k.Port[0]] = true
		return true
	}); err != nil || len(seen) != n {
		t.Errorf("%d rows, %v; want %d", len(seen), err, n)
	}
	calls := 0
	if err := bpf.Each(d.Flows, func(*bpf.DatapathFlowKey, *bpf.DatapathFlow) bool {
		calls++
		return calls < 5
	}); err != nil || calls != 5 {
		t.Errorf("%d calls, %v; want 5", calls, err)
	}
	if err := bpf.Each(d.Wires, func(*uint32, *bpf.DatapathWire) bool {
		t.Error("a row of an empty map")
		return true
	}); err != nil {
		t.Error(err)
	}
	var prefixes []string // a kind of map that old kernels have no batches for
	for _, p := range []string{"10.0.0.0/8", "fd00::/8"} {
		if err := d.Prefixes.Put(bpf.Prefix(netip.MustParsePrefix(p)), bpf.DatapathPrefix{Flags: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := bpf.Each(d.Prefixes, func(k *bpf.DatapathPrefixKey, p *bpf.DatapathPrefix) bool {
		prefixes = append(prefixes, k.Netip().String())
		return p.Flags == 1
	}); err != nil || len(prefixes) != 2 {
		t.Errorf("%v, %v", prefixes, err)
	}
}

func TestDump(t *testing.T) {
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1}, nil)
	put := func(m *ebpf.Map, key, value any) {
		t.Helper()
		if err := m.Put(key, value); err != nil {
			t.Fatal(err)
		}
	}
	pod := bpf.DatapathEndpoint{Ifindex: 7, Slot: 2, PodMac: bpf.DatapathMac{B: [6]uint8{2, 0, 0, 0, 0, 1}}}
	put(d.Endpoints, bpf.Addr(netip.MustParseAddr("10.0.1.2")), pod)
	put(d.PodLinks, uint32(7), bpf.DatapathPodLink{Addr6: bpf.Addr(netip.MustParseAddr("fd00::2")), Endpoint: pod})
	if err := (&bpf.Epochs{Map: d.Epochs}).Bump(9); err != nil {
		t.Fatal(err)
	}
	put(d.Prefixes, bpf.Prefix(netip.MustParsePrefix("10.0.2.0/24")), bpf.DatapathPrefix{Flags: 1})
	put(d.Flows, bpf.DatapathFlowKey{Port: [2]uint16{bpf.Port(80), bpf.Port(81)}, Proto: 6},
		bpf.DatapathFlow{PodPort: bpf.Port(82)})
	range6 := bpf.Prefix(netip.MustParsePrefix("fd00::/8"))
	put(d.SourceRanges, bpf.DatapathSourceRangeKey{Length: 32 + range6.Length, Service: 4, Addr: range6.Addr},
		uint32(1))
	put(d.NatEntries, bpf.DatapathNatTuple{Dport: bpf.Port(80), Proto: 17},
		bpf.DatapathNatEntry{NatPort: bpf.Port(80), BackendId: 5})
	put(d.XdpWires, uint32(1), uint32(1)) // the loopback device
	put(d.XdpPorts, bpf.DatapathXdpPort{Ifindex: 1, Vid: 5}, uint32(2))
	for name, want := range map[string]string{
		"xdp_wires":     "1 | 1",
		"xdp_ports":     "ifindex=1 vid=5 | 2",
		"source_ranges": "service=4 prefix=fd00::/8 | 1",
		"nat_entries":   "dport=80 proto=17 | natport=80 tcpflags=0000 backendid=5",
		"endpoints":     "10.0.1.2 | ifindex=7 slot=2 podmac=02:00:00:00:00:01",
		"pod_links":     "7 | addr6=fd00::2 endpoint.ifindex=7 endpoint.slot=2 endpoint.podmac=02:00:00:00:00:01",
		"epochs":        "9 | 1",
		"prefixes":      "10.0.2.0/24 | flags=1",
		"flows":         "port[0]=80 port[1]=81 proto=6 | podport=82",
	} {
		var got []string
		if err := d.Dump(name, func(r *bpf.DumpRow) bool {
			got = append(got, strings.Join(r.TableRow(), " | "))
			if data, err := json.Marshal(r); err != nil || !strings.HasPrefix(string(data), `{"key":`) {
				t.Errorf("%s as JSON: %s, %v", name, data, err)
			}
			return true
		}); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	for name := range d.MapsByName() {
		err := d.Dump(name, func(*bpf.DumpRow) bool { return true })
		if bpf.HasRows(name) != (err == nil) {
			t.Errorf("dump of %s: %v", name, err)
		}
	}
	if err := d.Dump("nothing", nil); err == nil {
		t.Error("a map that is not there was dumped")
	}
}

// TestMapsByName: a map that is not listed would not be pinned, nor shown.
func TestMapsByName(t *testing.T) {
	spec, err := bpf.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	listed := (&bpf.Datapath{}).MapsByName()
	for name := range spec.Maps {
		if _, ok := listed[name]; !ok && !strings.HasPrefix(name, ".") {
			t.Errorf("%s is not listed", name)
		}
	}
}
