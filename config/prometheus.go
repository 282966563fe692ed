package config

import (
	"fmt"
	"net/netip"
)

// Prometheus is the metrics listener.
type Prometheus struct {
	Enabled bool
	Port    uint16
	// Address is the one of the node's that it listens on; empty: all of them.
	Address string // key myelin.prometheus.address
}

// checkAddress wants an IP address without a zone, or nothing.
func checkAddress(s string) error {
	if a, err := netip.ParseAddr(s); s != "" && (err != nil || a.Zone() != "") {
		return fmt.Errorf("%q is not an IP address such as 192.0.2.1 or 2001:db8::1", s)
	}
	return nil
}
