package config

// Prometheus is the metrics listener.
type Prometheus struct {
	Enabled bool
	Port    uint16
	// Address is the one of the node's that it listens on; empty: all of them.
	Address string // key myelin.prometheus.address
}
