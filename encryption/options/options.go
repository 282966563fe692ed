// Package options is the configuration of encryption between nodes.
package options

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"myelin/config/key"
)

// The values of encryption.type.
const (
	wireGuard = "wireguard"
	ipsec     = "ipsec"
)

// Options are the values of the keys.
type Options struct {
	Enabled bool   // key encryption.enabled
	Type    string // key encryption.type
	// Keepalive is how often an idle peer gets a packet, 0: never. Key encryption.wireguard.persistentKeepalive.
	Keepalive time.Duration
	// StrictEgress drops what would leave in plain text for an address in StrictCIDRs. Keys
	// encryption.strictMode.egress.enabled and cidr.
	StrictEgress bool
	StrictCIDRs  []netip.Prefix
	// StrictNodes exempts addresses of nodes from that. Key encryption.strictMode.egress.allowRemoteNodeIdentities.
	StrictNodes bool
	// StrictIngress drops what comes in plain text and should be encrypted. Key encryption.strictMode.ingress.enabled.
	StrictIngress bool
	// KeyRotation is how long a replaced key of IPsec is accepted. Key encryption.ipsec.keyRotationDuration.
	KeyRotation time.Duration
	// KeyWatcher: the file of IPsec's key is followed while the agent runs. Key encryption.ipsec.keyWatcher.
	KeyWatcher bool
	// KeyDir and KeyFile are where the key is. Keys encryption.ipsec.mountPath and keyFile.
	KeyDir, KeyFile string
	// NodeEncryption encrypts traffic between nodes themselves, too. Key encryption.nodeEncryption.
	NodeEncryption bool
	// OptOut selects the nodes that have it in plain text. Key myelin.nodeEncryptionOptOutLabels.
	OptOut string
	// Supervise starts the process that is WireGuard where the kernel has none; else it is asked of another supervisor.
	// Key myelin.wireguard.supervise.
	Supervise bool
}

// MaxKeepalive is the largest interval that WireGuard has: seconds in 16 bits.
const MaxKeepalive = 65535 * time.Second

// Default are the options of an empty file. The type is that of Cilium.
func Default() Options {
	return Options{Type: ipsec, KeyRotation: 5 * time.Minute, KeyWatcher: true, KeyDir: "/etc/ipsec", KeyFile: "keys",
		OptOut: "node-role.kubernetes.io/control-plane", Supervise: true}
}

// EncryptsNodes reports whether traffic between nodes themselves is encrypted.
func (o *Options) EncryptsNodes() bool { return o.Enabled && o.NodeEncryption }

// OptsOut selects the nodes whose own traffic is in plain text.
func (o *Options) OptsOut() labels.Selector {
	s, err := labels.Parse(o.OptOut)
	if err != nil || s.Empty() { // the empty selector has all nodes
		return labels.Nothing()
	}
	return s
}

// selectorSchema is what a label selector looks like.
func selectorSchema() key.Schema {
	const value = `[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?`
	const name = `([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?` + value
	const term = ` *(! *` + name + `|` + name + ` *((=|==|!=) *(` + value + `)?| (in|notin) *\([^()]*\))?) *`
	return key.Pattern("^("+term+"(,"+term+")*)?$", "a label selector")
}

func checkSelector(s string) error {
	_, err := labels.Parse(s)
	return err
}

// maxKeyRotation bounds how long a replaced key is accepted.
const maxKeyRotation = 24 * time.Hour

// UsesIPsec reports whether packets are encrypted by IPsec.
func (o *Options) UsesIPsec() bool { return o.Enabled && o.Type == ipsec }

// UsesWireGuard reports whether packets are encrypted by WireGuard.
func (o *Options) UsesWireGuard() bool { return o.Enabled && o.Type == wireGuard }

// KeyPath is the file that has IPsec's key.
func (o *Options) KeyPath() string { return filepath.Join(o.KeyDir, o.KeyFile) }

// ipsecKeys are the keys of IPsec.
func ipsecKeys() []key.Key[Options] {
	const off = "encryption.enabled is false, or encryption.type is not ipsec"
	on := (*Options).UsesIPsec
	return []key.Key[Options]{
		key.Path("encryption.ipsec.mountPath", func(o *Options) *string { return &o.KeyDir }).If(on, off),
		key.Checked("encryption.ipsec.keyFile", func(o *Options) *string {
			return &o.KeyFile
		}, checkKeyFile, key.Pattern("^[^/]+$", "the name of a file")).If(on, off),
		key.Duration("encryption.ipsec.keyRotationDuration", func(o *Options) *time.Duration {
			return &o.KeyRotation
		}, 0, maxKeyRotation).If(on, off),
		key.Boolean("encryption.ipsec.keyWatcher", func(o *Options) *bool { return &o.KeyWatcher }).If(on, off),
	}
}

func checkKeyFile(s string) error {
	if s == "" || s != filepath.Base(s) || s == "." || s == ".." {
		return fmt.Errorf("%q is not the name of a file", s)
	}
	return nil
}

// Keys are the keys of the configuration file.
func Keys() []key.Key[Options] {
	on := func(o *Options) bool { return o.Enabled }
	const off = "encryption.enabled is false"
	return append(ipsecKeys(), []key.Key[Options]{
		key.Boolean("encryption.enabled", func(o *Options) *bool { return &o.Enabled }).With(key.NeedsCluster),
		key.OneOf("encryption.type", func(o *Options) *string {
			return &o.Type
		}, []string{wireGuard, ipsec}).If(on, off),
		key.Duration("encryption.wireguard.persistentKeepalive", func(o *Options) *time.Duration {
			return &o.Keepalive
		}, 0, MaxKeepalive).If(on, off),
		key.Boolean("encryption.strictMode.egress.enabled", func(o *Options) *bool {
			return &o.StrictEgress
		}).If(on, off),
		key.CIDRs("encryption.strictMode.egress.cidr", func(o *Options) *[]netip.Prefix {
			return &o.StrictCIDRs
		}).If(on, off),
		key.Boolean("encryption.strictMode.egress.allowRemoteNodeIdentities", func(o *Options) *bool {
			return &o.StrictNodes
		}).If(on, off),
		key.Boolean("encryption.strictMode.ingress.enabled", func(o *Options) *bool {
			return &o.StrictIngress
		}).If(on, off),
		key.Boolean("encryption.nodeEncryption", func(o *Options) *bool { return &o.NodeEncryption }).If(on, off),
		key.Checked("myelin.nodeEncryptionOptOutLabels", func(o *Options) *string {
			return &o.OptOut
		}, checkSelector, selectorSchema()).If((*Options).EncryptsNodes, "encryption.nodeEncryption is false"),
		key.Boolean("myelin.wireguard.supervise", func(o *Options) *bool {
			return &o.Supervise
		}).If((*Options).UsesWireGuard, "encryption.enabled is false, or encryption.type is not wireguard"),
	}...)
}

// Strict are the prefixes that nothing may leave for in plain text.
func (o *Options) Strict() []netip.Prefix {
	if !o.Enabled || !o.StrictEgress {
		return nil
	}
	return o.StrictCIDRs
}

// Check reports values that are wrong together.
func (o *Options) Check(add key.Add) {
	if o.UsesIPsec() && o.NodeEncryption {
		add("encryption.nodeEncryption",
			"needs encryption.type wireguard: IPsec does not encrypt traffic between nodes themselves")
	}
	if o.StrictEgress && len(o.StrictCIDRs) == 0 {
		add("encryption.strictMode.egress.cidr", "must be set for encryption.strictMode.egress.enabled")
	}
	if !o.Enabled && (o.StrictEgress || o.StrictIngress) {
		add("encryption.strictMode", "needs encryption.enabled")
	}
	if o.Keepalive%time.Second != 0 {
		add("encryption.wireguard.persistentKeepalive", "%s is no whole number of seconds", o.Keepalive)
	}
}
