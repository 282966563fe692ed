package bench

import (
	"fmt"

	"myelin/bpf"
)

// frontKind is what distinguishes the fronts that costs are measured on.
type frontKind string

const (
	frontSNAT frontKind = "snat" // one backend, SNAT
	frontIPIP frontKind = "ipip" // one backend outside the cluster, DSR by IPIP
	frontMany frontKind = "many" // manyBackends, SNAT
)

// There are 28,232 NAT ports to one backend: many flows need several backends. With these, one flow in 15 does not get
// its first candidate port.
const (
	manyFlows      = 1 << 16
	manyBackends   = 16
	manyClients    = 16
	manyNATEntries = 1 << 18
)

func frontKinds() []frontKind { return []frontKind{frontSNAT, frontIPIP, frontMany} }

// newCostFront returns the front and what balances on it.
func newCostFront(kind frontKind, family Family) (*front, *mine) {
	by := &mine{xdp: true, ipip: kind == frontIPIP}
	f := newFront("cost-"+string(kind), family, by)
	if kind == frontMany {
		f.backendCount, by.natEntries = manyBackends, manyNATEntries
	}
	return f, by
}

// cost is one kind of packet that a program of ours is timed with.
type cost struct {
	hook  bpf.Hook
	name  string // of the result, without the family
	front frontKind
	to    string // a name of front.names
	l4    string // with the client's port
	begin string // each flow's first packet, through from_wire; empty: none
	flows flows
	// verdict is what the program returns, for each packet unless known is set.
	verdict int32
	begins  bool // each packet begins a flow
	bound   bool // newBound is timed instead of the hook's program
	selects bool // of a bound: it also selects the backend
	known   bool // packets of known flows that XDP passes to tc are counted
	ratios  []ratio
}

// ratio compares a cost with the sum of others, by their names.
type ratio struct {
	name string
	of   []string
}

// hitName is the cost that others are multiples of.
const hitName = "xdp/ns_udp_hit"

// Costs that those of new flows are multiples of.
const (
	boundName       = "xdp/ns_new_bound"
	neededByTCPName = "xdp/ns_tcp_needed"
	neededByUDPName = "xdp/ns_udp_needed"
)

// ofHit is the ratio to a hit.
func ofHit(name string) []ratio { return []ratio{{name, []string{hitName}}} }

// ofNewFlow are the ratios of a new flow of a protocol: to a hit, to the insertions that it takes, and to all that it
// takes, which is a hit, too.
func ofNewFlow(proto, needed string) []ratio {
	return append(ofHit("xdp/x_"+proto+"_new"), ratio{"xdp/" + proto + "_new_vs_bound", []string{boundName}},
		ratio{"xdp/" + proto + "_new_vs_needed", []string{needed, hitName}})
}

// knownToTC is the result of costs with known set.
const knownToTC = "xdp/known_to_tc_percent"

func costs() []cost {
	udp, tcp := fmt.Sprintf("udp %%d > %d", frontUDP), fmt.Sprintf("tcp %%d > %d", frontTCP)
	return append(xdpCosts(udp, tcp), tcCosts(udp, tcp)...)
}

// Ports of flows that from_wire has seen, and of flows that it has not.
const begunPort, unknownPort = 40000, 50000

// newFlows begin in each round of costs that measure the new-flow path.
const newFlows = 4096

func xdpCosts(udp, tcp string) []cost {
	few, unknown := flows{count: frontFlows, first: begunPort}, flows{count: frontFlows, first: unknownPort}
	fresh := flows{count: newFlows, first: unknownPort}
	many := flows{count: manyFlows, clients: manyClients, first: begunPort}
	list := []cost{
		{name: hitName, to: "lb", l4: udp, begin: udp, flows: few, verdict: xdpTX},
		{name: "xdp/ns_tcp_established", to: "lb", l4: tcp + " A", begin: tcp + " S", flows: few, verdict: xdpTX},
		{name: "xdp/ns_ipip_hit", front: frontIPIP, to: "lb", l4: udp, begin: udp, flows: few, verdict: xdpTX,
			ratios: ofHit("xdp/x_ipip_hit")},
		{name: "xdp/ns_udp_hit_65536", front: frontMany, to: "lb", l4: udp, begin: udp, flows: many, verdict: xdpTX,
			known: true, ratios: ofHit("xdp/x_hit_65536")},
		// the path is that of the other protocol's flows
		{name: "xdp/ns_tcp_syn", to: "lb", l4: tcp + " S", begin: udp, flows: fresh, verdict: xdpTX, begins: true,
			ratios: ofNewFlow("tcp", neededByTCPName)},
		{name: "xdp/ns_udp_new", to: "lb", l4: udp, begin: tcp + " S", flows: fresh, verdict: xdpTX, begins: true,
			ratios: ofNewFlow("udp", neededByUDPName)},
		{name: boundName, to: "lb", l4: tcp + " S", begin: udp, flows: fresh, verdict: xdpTX, begins: true, bound: true,
			ratios: ofHit("xdp/x_new_bound")},
		{name: neededByTCPName, to: "lb", l4: tcp + " S", begin: udp, flows: fresh, verdict: xdpTX, begins: true,
			bound: true, selects: true},
		{name: neededByUDPName, to: "lb", l4: udp, begin: tcp + " S", flows: fresh, verdict: xdpTX, begins: true,
			bound: true, selects: true},
		{name: "xdp/ns_tcp_unknown", to: "lb", l4: tcp + " A", flows: unknown, verdict: xdpPass},
		{name: "xdp/ns_miss", to: "unused", l4: udp, flows: unknown, verdict: xdpPass, ratios: ofHit("xdp/x_miss_udp")},
	}
	return at(bpf.FromWireXDP, list)
}

func tcCosts(udp, tcp string) []cost {
	few, fresh := flows{count: frontFlows, first: begunPort}, flows{count: newFlows, first: unknownPort}
	return at(bpf.FromWire, []cost{
		{name: "tc/ns_udp_hit", to: "lb", l4: udp, begin: udp, flows: few, verdict: tcAway},
		{name: "tc/ns_tcp_established", to: "lb", l4: tcp + " A", begin: tcp + " S", flows: few, verdict: tcAway},
		{name: "tc/ns_ipip_hit", front: frontIPIP, to: "lb", l4: udp, begin: udp, flows: few, verdict: tcAway},
		{name: "tc/ns_tcp_syn", to: "lb", l4: tcp + " S", flows: fresh, verdict: tcAway, begins: true},
	})
}

// at sets the hook of costs, and frontSNAT where there is no front.
func at(hook bpf.Hook, list []cost) []cost {
	for i := range list {
		list[i].hook = hook
		if list[i].front == "" {
			list[i].front = frontSNAT
		}
	}
	return list
}
