package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"myelin/agent/feature"
	"myelin/policy/identity"
)

// identities allocates a number for each set of labels in the cluster.
type identities struct {
	*feature.Node
	all *identity.Identities
}

func (i *identities) feature() *feature.Feature {
	return &feature.Feature{Name: "identities", Start: i.start, Metrics: i.metrics, Commands: i.commands()}
}

func (i *identities) start(context.Context) error {
	if err := os.MkdirAll(i.Config.Myelin.RunDir, 0o700); err != nil {
		return fmt.Errorf("make run directory: %w", err)
	}
	var err error
	i.all, err = identity.New(identity.Params{
		DB: i.DB, Tables: i.Cluster, Node: i.Config.Myelin.NodeName, ClusterName: i.Config.ClusterName,
		File: filepath.Join(i.Config.Myelin.RunDir, "identities.json"), Log: i.Log, Now: time.Now,
	})
	if err != nil {
		return err
	}
	i.Go("identities", i.all.Run)
	return nil
}

func (i *identities) metrics(s feature.Sink) {
	types := map[string]int{"reserved": 0, "node_local": 0}
	for id := range i.all.Identities().All(i.DB.ReadTxn()) {
		if id.ID < identity.First {
			types["reserved"]++
		} else {
			types["node_local"]++
		}
	}
	for kind, n := range types {
		s.Gauge("myelin_identity", "Identities of label sets on this node by type.", float64(n),
			prometheus.Labels{"type": kind})
	}
}

// commands are those that show identities.
func (*identities) commands() []feature.Command {
	return []feature.Command{
		{Name: "identity", Short: "Inspect the identities of label sets on this node", Views: []feature.View{
			{Name: "list", Short: "List identities with their labels", Table: "identities"},
			{Name: "get", Short: "Show the labels of an identity", Table: "identities", By: "ID"},
			{Name: "addresses", Short: "List addresses with their identities", Table: "identity-addresses"},
		}},
	}
}
