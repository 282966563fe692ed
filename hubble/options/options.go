package options

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"myelin/config/key"
)

// Options are the values of the keys: the record of flows, its API, and what takes all flows.
type Options struct {
	Enabled bool
	// EventBufferCapacity is how many events are kept, one less than a power of two; 0: it follows the rate of flows.
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

	Metrics MetricsOptions
	Export  ExportOptions
}

// Redact has the keys of hubble.redact.
type Redact struct {
	Enabled  bool
	URLQuery bool // key hubble.redact.http.urlQuery
	UserInfo bool // key hubble.redact.http.userInfo
}

// Without a fixed capacity the ring of events begins with AutoCapacity, and grows up to MaxCapacity to keep the flows
// of AutoKeep: all of them up to 1,092 flows a second.
const (
	AutoCapacity = 1<<12 - 1
	MaxCapacity  = 1<<16 - 1
	AutoKeep     = time.Minute
)

// Capacity is how many events are kept at first.
func (o *Options) Capacity() int { return cmp.Or(o.EventBufferCapacity, AutoCapacity) }

// Default are the options of an empty file.
func Default() Options {
	return Options{
		Enabled: true, TLS: true, Redact: Redact{UserInfo: true},
		Metrics: MetricsOptions{Port: 9965, MaxSeries: 10000},
		Export: ExportOptions{
			FilePath: "/var/run/cilium/hubble/events.log", FileMaxSizeMB: defaultMaxSizeMB,
			FileMaxFiles: defaultMaxBackups, DynamicPath: "/flowlog-config/flowlogs.yaml",
			IPFIXInterval: 10 * time.Minute,
		},
	}
}

// Keys are the keys of the configuration file.
func Keys() []key.Key[Options] {
	keys := slices.Concat(serverKeys(),
		key.Within(func(o *Options) *MetricsOptions { return &o.Metrics }, metricsKeys()),
		key.Within(func(o *Options) *ExportOptions { return &o.Export }, exportKeys()),
	)
	for i, k := range keys {
		switch k.Name {
		case "hubble.metrics.enabled", static + "enabled", "hubble.export.dynamic.enabled", otlpKeys + "endpoint",
			ipfixKeys + "collector":
			keys[i] = k.If(func(o *Options) bool { return o.Enabled }, "hubble.enabled is false")
		}
	}
	return keys
}

func serverKeys() []key.Key[Options] {
	return []key.Key[Options]{
		key.Boolean("hubble.enabled", func(o *Options) *bool { return &o.Enabled }),
		capacity("hubble.eventBufferCapacity", func(o *Options) *int { return &o.EventBufferCapacity }),
		key.File("hubble.socketPath", func(o *Options) *string { return &o.SocketPath }),
		key.Checked("hubble.listenAddress", func(o *Options) *string { return &o.ListenAddress }, maybeListenAddress,
			key.Pattern(`^(([0-9.]*|\[[0-9a-fA-F:.]+\]):[0-9]+)?$`, "an address and a port, :PORT, or nothing")),
		key.Boolean("hubble.preferIpv6", func(o *Options) *bool { return &o.PreferIPv6 }),
		key.Boolean("hubble.tls.enabled", func(o *Options) *bool { return &o.TLS }),
		key.Boolean("hubble.redact.enabled", func(o *Options) *bool { return &o.Redact.Enabled }),
		key.Boolean("hubble.redact.http.urlQuery", func(o *Options) *bool { return &o.Redact.URLQuery }),
		key.Boolean("hubble.redact.http.userInfo", func(o *Options) *bool { return &o.Redact.UserInfo }),
		key.File("myelin.hubble.tls.certFile", func(o *Options) *string { return &o.CertFile }),
		key.File("myelin.hubble.tls.keyFile", func(o *Options) *string { return &o.KeyFile }),
		key.File("myelin.hubble.tls.caFile", func(o *Options) *string { return &o.CAFile }),
	}
}

func maybeListenAddress(s string) error {
	if s == "" {
		return nil
	}
	return key.CheckListenAddress(s)
}

// auto is the capacity that follows the rate of flows.
const auto = "auto"

// capacity is one less than a power of two, which Helm values often have in quotes, or auto, as 0.
func capacity(name string, at func(*Options) *int) key.Key[Options] {
	sizes := []any{auto}
	for n := 1; n <= MaxCapacity; n = 2*n + 1 {
		sizes = append(sizes, n, strconv.Itoa(n))
	}
	return key.Key[Options]{
		Name: name,
		Set: func(o *Options, v any) error {
			s, ok := v.(string)
			switch {
			case s == auto:
				*at(o) = 0
				return nil
			case ok:
				v = json.Number(s)
			}
			n, err := key.Number(v, 1, MaxCapacity)
			if err == nil && n&(n+1) != 0 {
				err = fmt.Errorf("%d is not one less than a power of two, such as 4095", n)
			}
			if err == nil {
				*at(o) = int(n)
			}
			return err
		},
		Get: func(o *Options) string {
			if *at(o) == 0 {
				return auto
			}
			return strconv.Itoa(*at(o))
		},
		Schema: key.Schema{"enum": sizes},
	}
}

// Check refuses an API that any client on the network could read, unless the file asks for that.
func (o *Options) Check(add key.Add) {
	const tls = "myelin.hubble.tls."
	if !o.Enabled {
		return
	}
	some := cmp.Or(o.CertFile, o.KeyFile, o.CAFile) != ""
	switch {
	case some && (o.CertFile == "" || o.KeyFile == ""):
		add(tls+"certFile", "%scertFile and %skeyFile must both be set", tls, tls)
	case o.ListenAddress != "" && o.TLS && !some:
		add("hubble.listenAddress", "is set, and there is no %scertFile: set it, with keyFile and caFile, or "+
			"hubble.tls.enabled to false, if every client that can connect may see all flows", tls)
	}
}
