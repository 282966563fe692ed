package route

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/endpoint"
	"myelin/ipam"
)

// unreconciled is node n1 of a cluster without a kernel: rows are derived into its tables, and that is all.
type unreconciled struct {
	*Routes
	tb        testing.TB
	nodes     statedb.RWTable[*cluster.Node]
	endpoints statedb.RWTable[*endpoint.Endpoint]
	podCIDRs  statedb.RWTable[*ipam.Assignment]
}

func newUnreconciled(tb testing.TB, c Config, nodes, pods int) *unreconciled {
	tb.Helper()
	db := statedb.New()
	tables, err := cluster.NewTables(db)
	if err != nil {
		tb.Fatal(err)
	}
	endpoints, err := endpoint.NewTable(db)
	if err != nil {
		tb.Fatal(err)
	}
	podCIDRs, err := ipam.NewTable(db)
	if err != nil {
		tb.Fatal(err)
	}
	u := &unreconciled{
		&Routes{DB: db, config: c, nodes: tables.Nodes, endpoints: endpoints, podCIDRs: podCIDRs}, tb, tables.Nodes,
		endpoints, podCIDRs,
	}
	if err := u.makeTables(); err != nil {
		tb.Fatal(err)
	}
	u.devices.links = map[int]Device{
		1: {Index: 1, Name: "lo", Type: "device", MTU: 65536},
		2: {Index: 2, Name: "eth0", Type: "veth", MTU: 1500},
	}
	u.devices.addresses = map[int][]netip.Prefix{2: {netip.MustParsePrefix("10.0.0.1/16"),
		netip.MustParsePrefix("fd07::1/64")}}
	u.devices.defaults = map[int]Device{2: {Default4: true,
		Gateways: []netip.Addr{netip.MustParseAddr("10.0.255.254")}}}
	insert(u, u.podCIDRs, assignment(0, 0))
	for i := range nodes {
		insert(u, u.nodes, aNode(i, i))
	}
	for i := range pods {
		u.link(i)
		insert(u, u.endpoints, aPod(i, i))
	}
	u.observe()
	return u
}

// aNode has the addresses of the i-th node and the podCIDRs of the p-th.
func aNode(i, p int) *cluster.Node {
	return clusterNode(fmt.Sprintf("n%d", i+1), []string{fmt.Sprintf("10.0.%d.%d", (i+1)>>8, (i+1)&255),
		fmt.Sprintf("fd07::%x", i+1)},
		[]string{fmt.Sprintf("10.%d.%d.0/24", 64+p>>8, p&255), fmt.Sprintf("fd70:%x::/64", p+1)})
}

// assignment gives n1 the podCIDRs of the p-th node, and its pods the gateways of the g-th.
func assignment(p, g int) *ipam.Assignment {
	gateways := aNode(0, g).PodCIDRs
	return &ipam.Assignment{Node: "n1", InForce: aNode(0, p).PodCIDRs, Gateway4: gateway(gateways[0]),
		Gateway6: gateway(gateways[1])}
}

// aPod has the link of the i-th pod and the addresses of the a-th.
func aPod(i, a int) *endpoint.Endpoint {
	return &endpoint.Endpoint{
		ID: uint16(i + 10), ContainerID: fmt.Sprint("c", i), IfName: "eth0",
		LinkName: fmt.Sprintf("%s%08x", PodPrefix, i), LinkIndex: i + 10,
		PodMAC: net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)}, State: endpoint.StateReady,
		IPv4: netip.AddrFrom4([4]byte{10, 64, 0, byte(a + 2)}),
		IPv6: netip.MustParseAddr(fmt.Sprintf("fd70:1::%x", a+2)),
	}
}

// secondPod has the link of aPod, which should not be.
func secondPod(i, a int) *endpoint.Endpoint {
	e := aPod(i, a)
	e.ID, e.ContainerID = e.ID+100, e.ContainerID+"-second"
	return e
}

func insert[Row any](u *unreconciled, t statedb.RWTable[Row], row Row) {
	txn := u.DB.WriteTxn(t)
	if _, _, err := t.Insert(txn, row); err != nil {
		u.tb.Fatal(err)
	}
	txn.Commit()
}

func remove[Row any](u *unreconciled, t statedb.RWTable[Row], row Row) {
	txn := u.DB.WriteTxn(t)
	if _, _, err := t.Delete(txn, row); err != nil {
		u.tb.Fatal(err)
	}
	txn.Commit()
}

func (u *unreconciled) link(i int) {
	e := aPod(i, i)
	u.devices.links[e.LinkIndex] = Device{Index: e.LinkIndex, Name: e.LinkName, Type: "veth", Kind: Pod, MTU: 1500}
}

// observe is what Routes.observe does after it has read the kernel.
func (u *unreconciled) observe() {
	if _, err := u.devices.write(u.selection()); err != nil {
		u.tb.Fatal(err)
	}
}

func (u *unreconciled) derive() {
	if _, err := u.Routes.derive(); err != nil {
		u.tb.Fatal(err)
	}
}

func (u *unreconciled) state() input {
	txn := u.DB.ReadTxn()
	s := input{Config: u.config, Devices: statedb.Collect(u.Devices.All(txn))}
	for n := range u.nodes.All(txn) {
		row := peerNode{Name: n.Name, Addresses: n.Addresses, PodCIDRs: n.PodCIDRs}
		if own, _, ok := u.podCIDRs.Get(txn, ipam.ByNode(n.Name)); ok {
			row.PodCIDRs, s.Gateways = own.InForce, own.Gateways()
		}
		s.Nodes = append(s.Nodes, row)
	}
	for e := range u.endpoints.All(txn) {
		if !e.Deleting() {
			s.Endpoints = append(s.Endpoints, localPod{Link: e.LinkName, MAC: e.PodMAC, Addresses: e.Addresses()})
		}
	}
	return s
}

// equal compares the rows of a table with those that follow from the whole state.
func equal[Row any](u *unreconciled, t statedb.Table[*Row], desired []*Row, same func(a, b *Row) bool) {
	u.tb.Helper()
	want := map[string]*Row{}
	for _, row := range desired {
		want[string(t.PrimaryIndexer().ObjectToKey(row))] = row
	}
	for row := range t.All(u.DB.ReadTxn()) {
		key := string(t.PrimaryIndexer().ObjectToKey(row))
		if want[key] == nil || !same(row, want[key]) {
			u.tb.Errorf("%s has %+v, want %+v", t.Name(), row, want[key])
		}
		delete(want, key)
	}
	for _, row := range want {
		u.tb.Errorf("%s lacks %+v", t.Name(), row)
	}
}

// podChanges are those of one pod and its link; i and j are below six.
func podChanges() []func(u *unreconciled, i, j int) {
	return []func(u *unreconciled, i, j int){
		func(u *unreconciled, i, _ int) { u.link(i) },
		func(u *unreconciled, i, _ int) { delete(u.devices.links, i+10) },
		func(u *unreconciled, i, _ int) { u.link(i); insert(u, u.endpoints, aPod(i, i)) },
		func(u *unreconciled, i, _ int) { insert(u, u.endpoints, aPod(i, i)) },
		func(u *unreconciled, i, _ int) { remove(u, u.endpoints, aPod(i, i)) },
		func(u *unreconciled, i, _ int) { remove(u, u.endpoints, aPod(i, i)); delete(u.devices.links, i+10) },
		func(u *unreconciled, i, _ int) {
			e := aPod(i, i)
			e.State = endpoint.StateDeleting
			insert(u, u.endpoints, e)
		},
		func(u *unreconciled, i, j int) { insert(u, u.endpoints, aPod(i, j)) }, // often the addresses of another pod
		func(u *unreconciled, i, j int) {
			e := aPod(i, i)
			e.PodMAC = net.HardwareAddr{2, 0, 0, 0, 1, byte(j)}
			insert(u, u.endpoints, e)
		},
		func(u *unreconciled, i, j int) { // the link's name, often one that another has
			if link, ok := u.devices.links[i+10]; ok {
				link.Name = aPod(j, j).LinkName
				u.devices.links[i+10] = link
			}
		},
		func(u *unreconciled, i, j int) { // what the link is: a pod's or a wire
			if link, ok := u.devices.links[i+10]; ok {
				link.Type, link.Kind = []string{"veth", "dummy"}[j%2], []Kind{Pod, ""}[j%2]
				link.MTU = 1400 + j
				u.devices.links[i+10], u.devices.defaults[i+10] = link, Device{Default4: true}
				u.devices.addresses[i+10] = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.0.0.%d/24", 100+i))}
			}
		},
		func(u *unreconciled, i, j int) { insert(u, u.endpoints, secondPod(i, j)) },
		func(u *unreconciled, i, _ int) { remove(u, u.endpoints, secondPod(i, i)) },
	}
}

// nodeChanges are those that more than one pod may depend on.
func nodeChanges() []func(u *unreconciled, i, j int) {
	return []func(u *unreconciled, i, j int){
		func(u *unreconciled, i, j int) { insert(u, u.nodes, aNode(1+i%3, 1+j%3)) },
		func(u *unreconciled, i, _ int) { remove(u, u.nodes, aNode(1+i%3, 0)) },
		func(u *unreconciled, i, j int) { insert(u, u.podCIDRs, assignment(i, j)) },
		func(u *unreconciled, i, j int) { // a node with the one address of a pod as its podCIDR
			insert(u, u.nodes, clusterNode("n5", []string{"10.0.0.5", "fd07::5"},
				[]string{fmt.Sprintf("10.64.0.%d/32", i+2), fmt.Sprintf("fd70:1::%x/128", j+2)}))
		},
		func(u *unreconciled, i, _ int) { remove(u, u.nodes, clusterNode("n5", nil, nil)) },
		func(u *unreconciled, i, _ int) { // the node loses an address, and gets it again
			u.devices.addresses[2] = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/16"),
				netip.MustParsePrefix("fd07::1/64")}[:1+i%2]
		},
	}
}

// TestDeriveAfterChanges: whatever changed, and whatever that left alone, tables have what follows from the whole
// state.
func TestDeriveAfterChanges(t *testing.T) {
	changes := slices.Concat(podChanges(), nodeChanges())
	for _, c := range []Config{dual("n1"), {Node: "n1", IPv4: true, IPv6: true, Tunnel: "myelin"}} {
		t.Run("tunnel="+c.Tunnel, func(t *testing.T) {
			for seed := range uint64(30) {
				random := rand.New(rand.NewPCG(seed, 0))
				u := newUnreconciled(t, c, 4, 3)
				u.derive()
				for range 60 {
					for range 1 + random.IntN(3) {
						// Most changes are of pods.
						n := min(random.IntN(len(changes)), random.IntN(len(changes)))
						changes[n](u, random.IntN(6), random.IntN(6))
					}
					u.observe()
					u.derive()
					want := derive(u.state())
					equal(u, u.Routes.Routes, want.Routes, (*Route).Equal)
					equal(u, u.Neighbours, want.Neighbours, (*Neighbour).Equal)
					equal(u, u.Addresses, want.Addresses, (*Address).Equal)
					equal(u, u.Sysctls, want.Sysctls, (*Sysctl).Equal)
					equal(u, u.NextHops, want.NextHops, (*NextHop).Equal)
				}
				if t.Failed() {
					t.Fatal("seed ", seed)
				}
			}
		})
	}
}

// The size of a full node in a large cluster.
const (
	manyPods  = 250
	manyNodes = 1000
)

// addRemove adds a pod to a full node and removes it, twice: four calls of derive.
func (u *unreconciled) addRemove() {
	for range 2 {
		insert(u, u.endpoints, aPod(manyPods, manyPods))
		u.derive()
		remove(u, u.endpoints, aPod(manyPods, manyPods))
		u.derive()
	}
}

// TestDifference: what is not a matter of single pods is left to a look at everything.
func TestDifference(t *testing.T) {
	dev := func(name string, kind Kind) *Device { return &Device{Name: name, Kind: kind} }
	a, b := localPod{Link: "a"}, localPod{Link: "b"}
	wire, pod := dev("eth0", Wire), dev("a", Pod)
	state := func(endpoints []localPod, devices ...*Device) input {
		return input{Endpoints: endpoints, Devices: devices}
	}
	for name, c := range map[string]struct {
		last, next input
		ok         bool
	}{
		"nothing":         {state([]localPod{a, b}, wire, pod), state([]localPod{a, b}, wire, pod), true},
		"a pod comes":     {state([]localPod{b}, wire), state([]localPod{a, b}, wire, pod), true},
		"a pod goes":      {state([]localPod{a, b}, wire, pod), state([]localPod{b}, wire), true},
		"another order":   {state([]localPod{a, b}), state([]localPod{b, a}), false},
		"two of one link": {state([]localPod{a, b}), state([]localPod{a, a, b}), false},
		"no more so":      {state([]localPod{a, a, b}), state([]localPod{a, b}), false},
		"two of one name": {state(nil, wire), state(nil, dev("eth0", Pod), wire), false},
		"a wire comes":    {state(nil), state(nil, wire), false},
		"a wire goes":     {state(nil, wire), state(nil), false},
		"a wire differs":  {state(nil, wire), state(nil, dev("eth0", Wire)), false},
		"a pod, no more":  {state(nil, pod), state(nil, dev("a", Other)), false},
	} {
		if _, _, ok := difference(c.last, c.next); ok != c.ok {
			t.Errorf("%s: %v", name, ok)
		}
	}
}

// TestPodDerivesItsRows: a pod that comes or goes does not cost a look at the rows of all nodes and pods.
func TestPodDerivesItsRows(t *testing.T) {
	few, many := newUnreconciled(t, dual("n1"), 2, manyPods), newUnreconciled(t, dual("n1"), manyNodes, manyPods)
	few.derive()
	many.derive()
	a, b := testing.AllocsPerRun(5, few.addRemove), testing.AllocsPerRun(5, many.addRemove)
	if rows := float64(2 * manyNodes); b-a > rows {
		t.Errorf("%.0f allocations beside one other node, %.0f beside %d", a, b, manyNodes)
	}
}

func BenchmarkPod(b *testing.B) {
	for _, nodes := range []int{2, manyNodes} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			u := newUnreconciled(b, dual("n1"), nodes, manyPods)
			u.derive()
			for b.Loop() {
				u.addRemove()
			}
		})
	}
}

func BenchmarkDerive(b *testing.B) {
	for _, nodes := range []int{2, manyNodes} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			u := newUnreconciled(b, dual("n1"), nodes, manyPods)
			s := u.state()
			for b.Loop() {
				derive(s)
			}
		})
	}
}
