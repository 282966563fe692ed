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

// keys are the node's public key of WireGuard, and the one that it changes to.
type keys struct{ key, next string }

// part is what a CiliumNode says of a node.
type part struct {
	node     string
	podCIDRs []netip.Prefix
	keys
}

func (p part) equal(o part) bool {
	return p.node == o.node && p.keys == o.keys && slices.Equal(p.podCIDRs, o.podCIDRs)
}

// pooled are the rows of nodes, of which a part comes from CiliumNodes: either may be there before the other.
type pooled struct {
	nodes rows
	table statedb.RWTable[*cluster.Node]
	// podCIDRs come from CiliumNodes, not only keys.
	podCIDRs bool

	mu    sync.Mutex
	parts map[string]part
	own   map[string]keys // that Nodes have themselves
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
	of := cmp.Or(known.keys, p.own[row.Name])
	next.WireGuardKey, next.NextWireGuardKey = of.key, of.next
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
		own: map[string]keys{}}
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
	n.pooled.own[node.Name] = keys{node.WireGuardKey, node.NextWireGuardKey}
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
			var errs [2]error
			out.podCIDRs, errs[0] = cluster.PodCIDRs("spec.ipam.podCIDRs", object.Spec.IPAM.PodCIDRs)
			out.key, out.next, errs[1] = cluster.WireGuardKeys(object.Annotations)
			return out, append(cluster.Faults(errs[0]), cluster.Faults(errs[1])...)
		},
	}
}
