package relay

import (
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/connectivity"
)

// Collector counts nodes by the state of the connection to them, under the name that Hubble Relay has for it.
func (r *Relay) Collector() prometheus.Collector {
	return collector{r.pool, prometheus.NewDesc("hubble_relay_pool_peer_connection_status",
		"Nodes by the state of the connection to their observer.", []string{"status"}, nil)}
}

type collector struct {
	pool *pool
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c collector) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

// Collect implements prometheus.Collector. Each state has a value, so that alerts have something to compare.
func (c collector) Collect(out chan<- prometheus.Metric) {
	count := map[connectivity.State]int{}
	peers, _ := c.pool.list()
	for _, p := range peers {
		count[p.conn.GetState()]++
	}
	for s := connectivity.Idle; s <= connectivity.Shutdown; s++ {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(count[s]),
			s.String())
	}
}
