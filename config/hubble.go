package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
)

// Hubble is the record of flows and its API.
type Hubble struct {
	Enabled bool
	// EventBufferCapacity is how many events are kept, one less than a power of two.
	EventBufferCapacity int
	// SocketPath is the unix socket of the API; empty: hubble.sock in myelin.runDir.
	SocketPath string
	// ListenAddress is where the API is served by TCP; empty: nowhere.
	ListenAddress string
	// PreferIPv6 has peers connect to each other by IPv6 where nodes have both families.
	PreferIPv6 bool // key hubble.preferIpv6
	// TLS: the API by TCP needs certificates; without, it is served on loopback, unless ListenAddress has an address.
	TLS bool // key hubble.tls.enabled
	// CertFile and KeyFile are this node's certificate, CAFile the authority of clients' certificates.
	CertFile, KeyFile, CAFile string // keys myelin.hubble.tls.certFile, keyFile, caFile
	// Redact has the fields that flows of HTTP leave out; headers are never recorded.
	Redact Redact
}

// Redact has the keys of hubble.redact.
type Redact struct {
	Enabled  bool
	URLQuery bool // key hubble.redact.http.urlQuery
	UserInfo bool // key hubble.redact.http.userInfo
}

// maxEvents bounds the ring of events.
const maxEvents = 1<<16 - 1

// hubble is the default.
func hubble() Hubble {
	return Hubble{Enabled: true, EventBufferCapacity: 4095, TLS: true, Redact: Redact{UserInfo: true}}
}

func hubbleSettings() []setting {
	return []setting{
		boolean("hubble.enabled", func(c *Config) *bool { return &c.Hubble.Enabled }),
		capacity("hubble.eventBufferCapacity", func(c *Config) *int { return &c.Hubble.EventBufferCapacity }),
		file("hubble.socketPath", func(c *Config) *string { return &c.Hubble.SocketPath }),
		checked("hubble.listenAddress", func(c *Config) *string { return &c.Hubble.ListenAddress }, maybeListenAddress,
			pattern(`^(([0-9.]*|\[[0-9a-fA-F:.]+\]):[0-9]+)?$`, "an address and a port, :PORT, or nothing")),
		boolean("hubble.preferIpv6", func(c *Config) *bool { return &c.Hubble.PreferIPv6 }),
		boolean("hubble.tls.enabled", func(c *Config) *bool { return &c.Hubble.TLS }),
		boolean("hubble.redact.enabled", func(c *Config) *bool { return &c.Hubble.Redact.Enabled }),
		boolean("hubble.redact.http.urlQuery", func(c *Config) *bool { return &c.Hubble.Redact.URLQuery }),
		boolean("hubble.redact.http.userInfo", func(c *Config) *bool { return &c.Hubble.Redact.UserInfo }),
		file("myelin.hubble.tls.certFile", func(c *Config) *string { return &c.Hubble.CertFile }),
		file("myelin.hubble.tls.keyFile", func(c *Config) *string { return &c.Hubble.KeyFile }),
		file("myelin.hubble.tls.caFile", func(c *Config) *string { return &c.Hubble.CAFile }),
	}
}

func maybeListenAddress(s string) error {
	if s == "" {
		return nil
	}
	return checkListenAddress(s)
}

// capacity is one less than a power of two, which Helm values often have in quotes.
func capacity(key string, at func(*Config) *int) setting {
	var sizes []any
	for n := 1; n <= maxEvents; n = 2*n + 1 {
		sizes = append(sizes, n, strconv.Itoa(n))
	}
	return setting{key,
		func(c *Config, v any) error {
			if s, ok := v.(string); ok {
				v = json.Number(s)
			}
			n, err := number(v, 1, maxEvents)
			if err == nil && n&(n+1) != 0 {
				err = fmt.Errorf("%d is not one less than a power of two, such as 4095", n)
			}
			if err == nil {
				*at(c) = int(n)
			}
			return err
		},
		func(c *Config) string { return strconv.Itoa(*at(c)) },
		Schema{"enum": sizes},
	}
}

// checkHubble refuses an API that any client on the network could read, unless the file asks for that.
func (c *Config) checkHubble(add func(key, format string, args ...any)) {
	const tls = "myelin.hubble.tls."
	h := &c.Hubble
	if !h.Enabled {
		return
	}
	some := cmp.Or(h.CertFile, h.KeyFile, h.CAFile) != ""
	switch {
	case some && (h.CertFile == "" || h.KeyFile == ""):
		add(tls+"certFile", "%scertFile and %skeyFile must both be set", tls, tls)
	case h.ListenAddress != "" && h.TLS && !some:
		add("hubble.listenAddress", "is set, and there is no %scertFile: set it, with keyFile and caFile, or "+
			"hubble.tls.enabled to false, if every client that can connect may see all flows", tls)
	}
}
