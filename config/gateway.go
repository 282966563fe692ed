package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"myelin/config/key"
)

// maxPeers limits the peers of a load balancer: each costs the memory of what it has not been sent yet.
const maxPeers = 15

// Gateway is how a standalone load balancer and its peers know each other's flows.
type Gateway struct {
	// Peers are the addresses of load balancers with the same frontends. This node's own has no effect.
	Peers []string // key myelin.gateway.peers
	// ListenAddress is where peers connect to.
	ListenAddress string // key myelin.gateway.listenAddress
	// CertFile and KeyFile are this node's certificate, CAFile the authority of all peers' certificates.
	CertFile, KeyFile, CAFile string // keys myelin.gateway.tls.certFile, keyFile, caFile
	// TrustedNetwork is instead of certificates: only peers can send from their addresses.
	TrustedNetwork bool // key myelin.gateway.trustedNetwork
}

// gateway is the default.
func gateway() Gateway { return Gateway{ListenAddress: ":9882"} }

// TLS reports whether peers have certificates.
func (g *Gateway) TLS() bool { return g.CertFile != "" }

// PeerAddresses returns the addresses of Peers.
func (g *Gateway) PeerAddresses() []netip.AddrPort {
	list := make([]netip.AddrPort, len(g.Peers))
	for i, p := range g.Peers {
		list[i] = netip.MustParseAddrPort(p) // Parse has checked it
	}
	return list
}

func gatewaySettings() []setting {
	return []setting{
		key.Unique("myelin.gateway.peers", func(c *Config) *[]string { return &c.Myelin.Gateway.Peers }, checkPeer,
			`[0-9.]+:[0-9]+|\[[0-9a-fA-F:.]+\]:[0-9]+`,
			"addresses and ports such as 192.0.2.1:9882 or [2001:db8::1]:9882"),
		key.Checked("myelin.gateway.listenAddress", func(c *Config) *string { return &c.Myelin.Gateway.ListenAddress },
			key.CheckListenAddress,
			key.Pattern(`^([0-9.]*|\[[0-9a-fA-F:.]+\]):[0-9]+$`, "an address and a port, or :PORT")),
		key.File("myelin.gateway.tls.certFile", func(c *Config) *string { return &c.Myelin.Gateway.CertFile }),
		key.File("myelin.gateway.tls.keyFile", func(c *Config) *string { return &c.Myelin.Gateway.KeyFile }),
		key.File("myelin.gateway.tls.caFile", func(c *Config) *string { return &c.Myelin.Gateway.CAFile }),
		key.Boolean("myelin.gateway.trustedNetwork", func(c *Config) *bool { return &c.Myelin.Gateway.TrustedNetwork }),
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

// checkGateway refuses peers that cannot be authenticated, and too many of them.
func (c *Config) checkGateway(add func(key, format string, args ...any)) {
	const key, tls = "myelin.gateway.peers", "myelin.gateway.tls."
	g := &c.Myelin.Gateway
	if n := len(g.Peers); n > maxPeers {
		add(key, "has %d peers, and may have %d", n, maxPeers)
	}
	if len(g.Peers) > 0 && !c.LoadBalancer.Standalone {
		add(key, "is set, and loadBalancer.standalone is false: only load balancers without a cluster have peers")
	}
	files := []string{g.CertFile, g.KeyFile, g.CAFile}
	some := cmp.Or(files...) != ""
	switch {
	case some && slices.Contains(files, ""):
		add(tls+"certFile", "%scertFile, keyFile and caFile must all be set, or none of them", tls)
	case some && g.TrustedNetwork:
		add("myelin.gateway.trustedNetwork", "is true, and %scertFile is set: peers have certificates or need none",
			tls)
	case len(g.Peers) > 0 && !some && !g.TrustedNetwork:
		add(key, "needs %scertFile, keyFile and caFile, without which any host could redirect connections; or "+
			"myelin.gateway.trustedNetwork: true, if only peers can send from their addresses", tls)
	}
}

// gatewayWarnings are of keys that mean nothing without peers.
func (c *Config) gatewayWarnings(add func(key, format string, args ...any)) {
	if len(c.Myelin.Gateway.Peers) > 0 {
		return
	}
	for _, s := range gatewaySettings() {
		if c.isSet(s.Name) && s.Name != "myelin.gateway.peers" {
			add(s.Name, "has no effect: myelin.gateway.peers is empty")
		}
	}
}
