package route

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/endpoint"
)

// The size of a full node in a large cluster.
const (
	manyPods  = 250
	manyNodes = 1000
)

// large is that node without a kernel: rows are derived into its tables, and nothing reconciles them.
func large(b testing.TB, c Config) (r *Routes, endpoints statedb.RWTable[*endpoint.Endpoint]) {
	b.Helper()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	db := statedb.New()
	tables, err := cluster.NewTables(db)
	must(err)
	endpoints, err = endpoint.NewTable(db)
	must(err)
	r = &Routes{DB: db, config: c, nodes: tables.Nodes, endpoints: endpoints}
	must(r.makeTables())
	r.devices.links = map[int]Device{1: {Index: 1, Name: "lo", Type: "device", MTU: 65536}, 2: {Index: 2, Name: "eth0", Type: "veth", MTU: 1500}}
	r.devices.addresses = map[int][]netip.Prefix{2: {netip.MustParsePrefix("10.0.0.1/16"), netip.MustParsePrefix("fd07::1/64")}}
	r.devices.defaults = map[int]Device{2: {Default4: true, Gateways: []netip.Addr{netip.MustParseAddr("10.0.255.254")}}}
	txn := db.WriteTxn(tables.Nodes, endpoints)
	for i := range manyNodes {
		n := clusterNode(fmt.Sprintf("n%d", i+1),
			[]string{fmt.Sprintf("10.0.%d.%d", (i+1)>>8, (i+1)&255), fmt.Sprintf("fd07::%x", i+1)},
			[]string{fmt.Sprintf("10.%d.%d.0/24", 64+i>>8, i&255), fmt.Sprintf("fd70:%x::/64", i+1)})
		_, _, err := tables.Nodes.Insert(txn, n)
		must(err)
	}
	for i := range manyPods {
		e := largePod(i)
		r.devices.links[e.LinkIndex] = Device{Index: e.LinkIndex, Name: e.LinkName, Type: "veth", Kind: Pod, MTU: 1500}
		_, _, err := endpoints.Insert(txn, e)
		must(err)
	}
	txn.Commit()
	return r, endpoints
}

func largePod(i int) *endpoint.Endpoint {
	return &endpoint.Endpoint{
		ID: uint16(i + 10), ContainerID: fmt.Sprint("c", i), IfName: "eth0", LinkName: fmt.Sprintf("%s%08x", PodPrefix, i), LinkIndex: i + 10,
		PodMAC: net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)},
		IPv4:   netip.AddrFrom4([4]byte{10, 64, 0, byte(i + 2)}), IPv6: netip.MustParseAddr(fmt.Sprintf("fd70:1::%x", i+2)),
	}
}

func BenchmarkAdd(b *testing.B) {
	for _, c := range []Config{dual("n1"), {Node: "n1", IPv4: true, IPv6: true, Tunnel: "myelin"}} {
		b.Run("tunnel="+c.Tunnel, func(b *testing.B) {
			r, endpoints := large(b, c)
			add := func(n int) {
				e := largePod(manyPods + n%2)
				txn := r.DB.WriteTxn(endpoints)
				endpoints.Insert(txn, e)
				if n >= 1 {
					endpoints.Delete(txn, largePod(manyPods+(n+1)%2))
				}
				txn.Commit()
				if _, err := r.derive(); err != nil {
					b.Fatal(err)
				}
			}
			add(0)
			n := 0
			for b.Loop() {
				n++
				add(n)
			}
		})
	}
}

func BenchmarkDerive(b *testing.B) {
	for _, c := range []Config{dual("n1"), {Node: "n1", IPv4: true, IPv6: true, Tunnel: "myelin"}} {
		b.Run("tunnel="+c.Tunnel, func(b *testing.B) {
			r, _ := large(b, c)
			r.derive()
			s := State{Config: c, Devices: statedb.Collect(r.Devices.All(r.DB.ReadTxn()))}
			for n := range r.nodes.All(r.DB.ReadTxn()) {
				s.Nodes = append(s.Nodes, Node{Name: n.Name, Addresses: n.Addresses, PodCIDRs: n.PodCIDRs})
			}
			for e := range r.endpoints.All(r.DB.ReadTxn()) {
				s.Endpoints = append(s.Endpoints, Endpoint{Link: e.LinkName, MAC: e.PodMAC, Addresses: e.Addresses()})
			}
			for b.Loop() {
				Derive(s)
			}
		})
	}
}
