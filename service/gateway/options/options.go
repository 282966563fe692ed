// Package options is the configuration of load balancers that know each other's flows.
package options

import (
	"fmt"
	"net/netip"

	"myelin/config/key"
)

// Options are how a standalone load balancer and its peers know each other's flows.
type Options struct {
	// Peers are the addresses of load balancers with the same frontends. This node's own has no effect.
	Peers []string // key myelin.gateway.peers
	// ListenAddress is where peers connect to.
	ListenAddress string // key myelin.gateway.listenAddress
	// CertFile and KeyFile are this node's certificate, CAFile the authority of all peers' certificates.
	CertFile, KeyFile, CAFile string // keys myelin.gateway.tls.certFile, keyFile, caFile
	// TrustedNetwork is instead of certificates: only peers can send from their addresses.
	TrustedNetwork bool // key myelin.gateway.trustedNetwork
}

// Default are the options of an empty file.
func Default() Options { return Options{ListenAddress: ":9882"} }

// TLS reports whether peers have certificates.
func (o *Options) TLS() bool { return o.CertFile != "" }

// PeerAddresses returns the addresses of Peers.
func (o *Options) PeerAddresses() []netip.AddrPort {
	list := make([]netip.AddrPort, len(o.Peers))
	for i, p := range o.Peers {
		list[i] = netip.MustParseAddrPort(p) // Parse has checked it
	}
	return list
}

// Keys are the keys of the configuration file.
func Keys() []key.Key[Options] {
	return []key.Key[Options]{
		key.Unique("myelin.gateway.peers", func(o *Options) *[]string { return &o.Peers }, checkPeer,
			`[0-9.]+:[0-9]+|\[[0-9a-fA-F:.]+\]:[0-9]+`,
			"addresses and ports such as 192.0.2.1:9882 or [2001:db8::1]:9882"),
		key.Checked("myelin.gateway.listenAddress", func(o *Options) *string { return &o.ListenAddress },
			key.CheckListenAddress,
			key.Pattern(`^([0-9.]*|\[[0-9a-fA-F:.]+\]):[0-9]+$`, "an address and a port, or :PORT")),
		key.File("myelin.gateway.tls.certFile", func(o *Options) *string { return &o.CertFile }),
		key.File("myelin.gateway.tls.keyFile", func(o *Options) *string { return &o.KeyFile }),
		key.File("myelin.gateway.tls.caFile", func(o *Options) *string { return &o.CAFile }),
		key.Boolean("myelin.gateway.trustedNetwork", func(o *Options) *bool { return &o.TrustedNetwork }),
	}
}

// checkPeer wants an address, not a name: what a name means could be forged.
func checkPeer(s string) error {
	at, err := netip.ParseAddrPort(s)
	if err != nil || at.Port() == 0 || at.Addr().Zone() != "" || at.Addr().Is4In6() {
		return fmt.Errorf("%q is not an address and port such as 192.0.2.1:9882 or [2001:db8::1]:9882", s)
	}
	if a := at.Addr(); a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() {
		return fmt.Errorf("%s is not the address of one machine", a)
	}
	return nil
}
