package kube

import (
	"encoding/json"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"myelin/cluster"
	"myelin/kube/crd"
)

// podCIDRs is what a CiliumNode says of a node.
type podCIDRs struct {
	node     string
	prefixes []netip.Prefix
}

// pooled are the rows of nodes, whose podCIDRs come from CiliumNodes: either may be
// there before the other.
type pooled struct {
	nodes rows
	table statedb.RWTable[*cluster.Node]

	mu       sync.Mutex
	prefixes map[string][]netip.Prefix
}

// of is what is known of a node's podCIDRs.
func (p *pooled) of(node string) ([]netip.Prefix, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list, ok := p.prefixes[node]
	return list, ok
}

// set notes them, and changes the node's row.
func (p *pooled) set(txn statedb.WriteTxn, node string, list []netip.Prefix, there bool) bool {
	before, was := p.of(node)
	p.mu.Lock()
	delete(p.prefixes, node)
	if there {
		p.prefixes[node] = list
	}
	p.mu.Unlock()
	if row, _, ok := p.table.Get(txn, cluster.NodeByName(node)); ok && !slices.Equal(row.PodCIDRs, list) {
		next := *row
		next.PodCIDRs = list
		return p.nodes.put(txn, &next)
	}
	return was != there || !slices.Equal(before, list)
}

// withPool adds CiliumNodes to kinds, from which Nodes' rows have their podCIDRs then.
func withPool(list []*kind, t cluster.Tables) []*kind {
	p := &pooled{nodes: nodeRows(t), table: t.Nodes, prefixes: map[string][]netip.Prefix{}}
	for _, k := range list {
		if k.Kind == "Node" {
			k.rows = &nodeWithPool{rows: p.nodes, pooled: p}
		}
	}
	return append(list, poolKind(p))
}

// nodeWithPool are rows of Nodes.
type nodeWithPool struct {
	rows

	pooled *pooled
}

func (n *nodeWithPool) put(txn statedb.WriteTxn, row any) bool {
	node, ok := row.(*cluster.Node)
	if !ok {
		panic("a row of another table")
	}
	next := *node
	next.PodCIDRs, _ = n.pooled.of(node.Name)
	return n.rows.put(txn, &next)
}

// poolRows are what CiliumNodes become.
type poolRows struct{ *pooled }

func (p poolRows) put(txn statedb.WriteTxn, row any) bool {
	c, ok := row.(*podCIDRs)
	if !ok {
		panic("a row of another table")
	}
	return p.set(txn, c.node, c.prefixes, true)
}

// known is the row itself: what is kept of it is made anew.
func (poolRows) known(_ statedb.ReadTxn, row any) any { return row }

// refuse keeps what was.
func (poolRows) refuse(statedb.WriteTxn, cluster.Key, *item, time.Time) bool {
	return false
}

func (p poolRows) remove(txn statedb.WriteTxn, key cluster.Key) bool {
	return p.set(txn, key.Name, nil, false)
}

func (p poolRows) keys(statedb.ReadTxn) (list []cluster.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.prefixes {
		list = append(list, cluster.Key{Name: name})
	}
	return list
}

func (p poolRows) count(statedb.ReadTxn) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.prefixes)
}

// poolKind are CiliumNodes.
func poolKind(p *pooled) *kind {
	return &kind{
		GroupVersionKind: schema.GroupVersionKind{Group: "cilium.io", Version: "v2", Kind: "CiliumNode"},
		resource:         "ciliumnodes", optional: true,
		object: &raw{}, list: &rawList{}, rows: poolRows{p},
		convert: func(o runtime.Object, _ time.Time) (any, cluster.FieldErrors) {
			var object crd.CiliumNode
			text := o.(*raw).text
			if err := json.Unmarshal(text, &object); err != nil {
				return nil, cluster.FieldErrors{cluster.Fault(err)}
			}
			list, err := cluster.PodCIDRs("spec.ipam.podCIDRs", object.Spec.IPAM.PodCIDRs)
			return &podCIDRs{node: object.Name, prefixes: list}, cluster.Faults(err)
		},
	}
}
