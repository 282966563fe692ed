package encryption

import (
	"slices"
	"strings"

	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"

	"myelin/agent/feature"
	"myelin/cluster"
)

// How traffic between this node itself and another one travels, with node encryption.
const (
	nodeEncrypted = "encrypted"
	nodeNoKey     = "plain: no key"
	nodeOptsOut   = "plain: it opts out"
	selfOptsOut   = "plain: this node opts out"
)

// nodeTraffic tells how traffic between this node itself and another one travels; empty without node encryption.
func (f *Feature) nodeTraffic(txn statedb.ReadTxn, n *cluster.Node) string {
	if !f.Config.Encryption.EncryptsNodes() {
		return ""
	}
	optsOut := f.Config.Encryption.OptsOut()
	self, _, ok := f.Cluster.Nodes.Get(txn, cluster.NodeByName(f.Config.Myelin.NodeName))
	switch {
	case ok && optsOut.Matches(labels.Set(self.Labels)):
		return selfOptsOut
	case optsOut.Matches(labels.Set(n.Labels)):
		return nodeOptsOut
	case n.WireGuardKey == "":
		return nodeNoKey
	}
	return nodeEncrypted
}

// nodesTraffic is what the status says about that; empty without node encryption.
func (f *Feature) nodesTraffic(txn statedb.ReadTxn) string {
	if !f.Config.Encryption.EncryptsNodes() {
		return ""
	}
	var out []string
	for n := range f.Cluster.Nodes.All(txn) {
		if n.Name == f.Config.Myelin.NodeName {
			continue
		}
		switch f.nodeTraffic(txn, n) {
		case selfOptsOut:
			return "traffic of this node itself is not encrypted, as it opts out by its labels"
		case nodeOptsOut:
			out = append(out, n.Name)
		}
	}
	slices.Sort(out)
	text := "traffic between nodes is encrypted, too"
	switch {
	case len(out) > 3:
		text += ", but for " + feature.Plural(len(out), "node") + " that opt out: see `myelin encrypt status`"
	case len(out) > 0:
		text += ", but for that of nodes that opt out by their labels: " + strings.Join(out, ", ")
	}
	return text
}

// nodeMetrics are those of node encryption.
func (f *Feature) nodeMetrics(s feature.Sink) {
	if !f.Config.Encryption.EncryptsNodes() {
		return
	}
	txn := f.DB.ReadTxn()
	counts := map[string]int{"yes": 0, "no": 0}
	for n := range f.Cluster.Nodes.All(txn) {
		switch {
		case n.Name == f.Config.Myelin.NodeName:
		case f.nodeTraffic(txn, n) == nodeEncrypted:
			counts["yes"]++
		default:
			counts["no"]++
		}
	}
	for is, n := range counts {
		s.Gauge("myelin_encryption_nodes",
			"Other nodes, by whether traffic between them and this node itself is encrypted.", float64(n),
			prometheus.Labels{"encrypted": is})
	}
}
