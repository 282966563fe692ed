package operator

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"myelin/hubble"
	"myelin/operator/pki"
)

// HubbleCertificates says which certificates of Hubble are to be made.
type HubbleCertificates struct {
	Cluster  string   // its name
	Kinds    []string // of those of HubbleKinds
	Validity time.Duration
	// Names are further DNS names and addresses of servers: of nodes, of relays, and of nodes as servers of metrics.
	ServerNames, RelayNames, MetricsNames []string
}

// The kinds of certificates: each one's Secret is hubble-KIND-certs, as in Cilium's chart.
const (
	certServer      = "server"       // of nodes
	certRelayClient = "relay-client" // of relays, for nodes
	certRelayServer = "relay-server" // of relays, for clients
	certUIClient    = "ui-client"    // of the web page, for relays
	certMetrics     = "metrics-server"
)

// HubbleKinds are all kinds of certificates.
func HubbleKinds() []string {
	return []string{certServer, certRelayClient, certRelayServer, certUIClient, certMetrics}
}

func hubbleSecret(kind string) string { return "hubble-" + kind + "-certs" }

// Secrets are the names of all Secrets that an operator may make.
func Secrets() []string {
	list := []string{caSecret}
	for _, kind := range HubbleKinds() {
		list = append(list, hubbleSecret(kind))
	}
	return list
}

// Certificates are those that h asks for, with the names that Cilium's have.
func (h HubbleCertificates) Certificates() ([]Certificate, error) {
	cluster := h.Cluster
	if cluster == "" {
		cluster = "default"
	}
	var list []Certificate
	for _, kind := range h.Kinds {
		if !slices.Contains(HubbleKinds(), kind) {
			return nil, fmt.Errorf("%q is none of %s", kind, strings.Join(HubbleKinds(), ", "))
		}
		r := pki.Request{Validity: h.Validity, Client: true}
		var more []string
		switch kind {
		case certServer:
			// Nodes are clients too: a relay on a node's own network, say.
			r.CommonName, r.Server, more = hubble.ServerName(cluster, "*"), true, h.ServerNames
		case certRelayClient:
			r.CommonName = "*.hubble-relay.cilium.io"
		case certRelayServer:
			r.CommonName, r.Server, r.Client, more = "*.hubble-relay.cilium.io", true, false, h.RelayNames
		case certUIClient:
			r.CommonName = "*.hubble-ui.cilium.io"
		case certMetrics:
			r.CommonName = strings.ReplaceAll(cluster, ".", "-") + ".hubble-metrics.cilium.io"
			r.Server, r.Client, more = true, false, h.MetricsNames
		}
		r.Names = append([]string{r.CommonName}, more...)
		list = append(list, Certificate{Secret: hubbleSecret(kind), Request: r})
	}
	return list, nil
}
