package encryption

import (
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"myelin/agent/feature"
	"myelin/cluster"
	"myelin/config"
)

// TestNodeTraffic: status, list and metrics tell which nodes opt out, and which have no key.
func TestNodeTraffic(t *testing.T) {
	label := map[string]string{"node-role.kubernetes.io/control-plane": ""}
	for name, c := range map[string]struct {
		change func(cfg *config.Config, nodes []*cluster.Node)
		want   []string // of n2, n3, n4
		status string
		yes    float64
	}{
		"off": {func(cfg *config.Config, _ []*cluster.Node) { cfg.Encryption.NodeEncryption = false },
			[]string{"", "", ""}, "", 0},
		"on": {func(*config.Config, []*cluster.Node) {}, []string{nodeEncrypted, nodeNoKey, nodeOptsOut},
			"traffic between nodes is encrypted, too, but for that of nodes that opt out by their labels: n4", 1},
		"no node opts out": {func(cfg *config.Config, _ []*cluster.Node) { cfg.Encryption.OptOut = "" },
			[]string{nodeEncrypted, nodeNoKey, nodeEncrypted}, "traffic between nodes is encrypted, too", 2},
		"this node opts out": {func(_ *config.Config, nodes []*cluster.Node) { nodes[0].Labels = label },
			[]string{selfOptsOut, selfOptsOut, selfOptsOut},
			"traffic of this node itself is not encrypted, as it opts out by its labels", 0},
	} {
		nodes := []*cluster.Node{node("n1", testKey("a")), node("n2", testKey("b")), node("n3", ""),
			node("n4", testKey("d"))}
		nodes[3].Labels = label
		cfg := config.Default()
		cfg.Myelin.NodeName = "n1"
		cfg.Encryption.Enabled, cfg.Encryption.Type, cfg.Encryption.NodeEncryption = true, "wireguard", true
		c.change(cfg, nodes)
		db := statedb.New()
		tables, err := cluster.NewTables(db)
		if err != nil {
			t.Fatal(err)
		}
		txn := db.WriteTxn(tables.Nodes)
		for _, n := range nodes {
			if _, _, err := tables.Nodes.Insert(txn, n); err != nil {
				t.Fatal(err)
			}
		}
		txn.Commit()
		f := &Feature{Node: &feature.Node{Config: cfg, DB: db, Cluster: tables}}
		var got []string
		for _, n := range nodes[1:] {
			got = append(got, f.nodeTraffic(db.ReadTxn(), n))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if text := f.nodesTraffic(db.ReadTxn()); text != c.status {
			t.Errorf("%s: the status says %q", name, text)
		}
		if yes := gauge(t, f.nodeMetrics, "encrypted", "yes"); yes != c.yes {
			t.Errorf("%s: the metric of encrypted nodes is %g, want %g", name, yes, c.yes)
		}
	}
}

// gauge is the value of the metric with a label, 0 if there is none.
func gauge(t *testing.T, collect func(feature.Sink), label, value string) (found float64) {
	t.Helper()
	out := make(chan prometheus.Metric, 16)
	collect(feature.Sink{Out: out})
	close(out)
	for m := range out {
		var row dto.Metric
		if err := m.Write(&row); err != nil {
			t.Fatal(err)
		}
		for _, l := range row.Label {
			if l.GetName() == label && l.GetValue() == value {
				found = row.Gauge.GetValue()
			}
		}
	}
	return found
}
