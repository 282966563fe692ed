// Package options is the configuration of the proxy for L7 rules.
package options

import "myelin/config/key"

// Options are the values of the keys.
type Options struct {
	Proxy bool // key l7Proxy; if false, rules by HTTP request, DNS name and TLS server name allow nothing
	// Supervise starts the proxy, and starts it again when it ends; else another supervisor does.
	Supervise bool // key myelin.proxy.supervise
	// Open lets new flows pass without L7 rules while the proxy does not run.
	Open bool // key myelin.proxy.open
	// SecretsNamespace is the namespace in which policies' Secrets are read where the cluster is an API server.
	SecretsNamespace string // key tls.secretsNamespace.name
}

// Default are the options of an empty file.
func Default() Options {
	return Options{Proxy: true, Supervise: true, SecretsNamespace: "cilium-secrets"}
}

// Keys are the keys of the configuration file.
func Keys() []key.Key[Options] {
	return []key.Key[Options]{
		key.Boolean("l7Proxy", func(o *Options) *bool { return &o.Proxy }),
		key.Boolean("myelin.proxy.supervise", func(o *Options) *bool { return &o.Supervise }),
		key.Boolean("myelin.proxy.open", func(o *Options) *bool { return &o.Open }),
		key.ObjectName("tls.secretsNamespace.name", func(o *Options) *string { return &o.SecretsNamespace }),
	}
}
