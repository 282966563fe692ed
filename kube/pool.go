package kube

import (
	"cmp"
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

// published is what a node's agent has published for encryption: its public key of WireGuard, the one that it changes
// to, and what keys of IPsec are derived from.
type published struct {
	key, next string
	ipsec     cluster.IPsec
}

// part is what a CiliumNode says of a node.
type part struct {
	node     string
	podCIDRs []netip.Prefix
	published
}

func (p part) equal(o part) bool {
	return p.node == o.node && p.published == o.published && slices.Equal(p.podCIDRs, o.podCIDRs)
}

// pooled are the rows of nodes, of which a part comes from CiliumNodes: either may be there before the other.
type pooled struct {
	nodes rows
	table statedb.RWTable[*cluster.Node]
	// podCIDRs come from CiliumNodes, not only keys.
	podCIDRs bool

	mu    sync.Mutex
	parts map[string]part
	own   map[string]published // by Nodes themselves
}

// of is what is known of a node.
func (p *pooled) of(node string) (part, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.parts[node]
	return known, ok
}

// complete adds to a Node's row what its CiliumNode says.
func (p *pooled) complete(row *cluster.Node) *cluster.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	next, known := *row, p.parts[row.Name]
	if p.podCIDRs {
		next.PodCIDRs = known.podCIDRs
	}
	of := cmp.Or(known.published, p.own[row.Name])
	next.WireGuardKey, next.NextWireGuardKey, next.IPsec = of.key, of.next, of.ipsec
	return &next
}

// set notes a part, and changes the node's row.
func (p *pooled) set(txn statedb.WriteTxn, next part, there bool) bool {
	before, was := p.of(next.node)
	p.mu.Lock()
	delete(p.parts, next.node)
	if there {
		p.parts[next.node] = next
	}
	p.mu.Unlock()
	if row, _, ok := p.table.Get(txn, cluster.NodeByName(next.node)); ok && p.nodes.put(txn, p.complete(row)) {
		return true
	}
	return was != there || !before.equal(next)
}

// withPool adds CiliumNodes to kinds, from which Nodes' rows have their keys then, and with podCIDRs their podCIDRs.
func withPool(list []*kind, t cluster.Tables, podCIDRs bool) []*kind {
	p := &pooled{nodes: nodeRows(t), table: t.Nodes, podCIDRs: podCIDRs, parts: map[string]part{},
		own: map[string]published{}}
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
	n.pooled.mu.Lock()
	n.pooled.own[node.Name] = published{node.WireGuardKey, node.NextWireGuardKey, node.IPsec}
	n.pooled.mu.Unlock()
	return n.rows.put(txn, n.pooled.complete(node))
}

func (n *nodeWithPool) remove(txn statedb.WriteTxn, key cluster.Key) bool {
	n.pooled.mu.Lock()
	delete(n.pooled.own, key.Name)
	n.pooled.mu.Unlock()
	return n.rows.remove(txn, key)
}

// poolRows are what CiliumNodes become.
type poolRows struct{ *pooled }

func (p poolRows) put(txn statedb.WriteTxn, row any) bool {
	c, ok := row.(*part)
	if !ok {
		panic("a row of another table")
	}
	return p.set(txn, *c, true)
}

// known is the row itself: what is kept of it is made anew.
func (poolRows) known(_ statedb.ReadTxn, row any) any { return row }

// refuse keeps what was.
func (poolRows) refuse(statedb.WriteTxn, cluster.Key, *item, time.Time) bool {
	return false
}

func (p poolRows) remove(txn statedb.WriteTxn, key cluster.Key) bool {
	return p.set(txn, part{node: key.Name}, false)
}

func (p poolRows) keys(statedb.ReadTxn) (list []cluster.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.parts {
		list = append(list, cluster.Key{Name: name})
	}
	return list
}

func (p poolRows) count(statedb.ReadTxn) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.parts)
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
			out := &part{node: object.Name}
			var errs [3]error
			out.podCIDRs, errs[0] = cluster.PodCIDRs("spec.ipam.podCIDRs", object.Spec.IPAM.PodCIDRs)
			out.key, out.next, errs[1] = cluster.WireGuardKeys(object.Annotations)
			out.ipsec, errs[2] = cluster.ReadIPsec(object.Annotations)
			return out, slices.Concat(cluster.Faults(errs[0]), cluster.Faults(errs[1]), cluster.Faults(errs[2]))
		},
	}
}
