package hubble

import (
	"context"
	"net"
	"strconv"
	"strings"

	peerpb "github.com/cilium/cilium/api/v1/peer"
	"github.com/cilium/statedb"
	"google.golang.org/grpc/status"

	"myelin/cluster"
	"myelin/internal/table"
)

// DefaultPort is the port of the observers of other nodes, unless this node's observer listens on another one.
const DefaultPort = 4244

// Peers serves the nodes of the cluster as peer.Peer. All fields are set before it is used.
type Peers struct {
	peerpb.UnimplementedPeerServer

	DB    *statedb.DB
	Nodes statedb.Table[*cluster.Node]
	// Cluster is the name of the cluster.
	Cluster string
	// Port is where each node listens.
	Port uint16
	// IPv6 prefers addresses of that family.
	IPv6 bool
	// TLS: the nodes have certificates.
	TLS bool
}

// Notify implements peerpb.PeerServer: all nodes, and then each change, until the client ends the call.
func (p *Peers) Notify(_ *peerpb.NotifyRequest, stream peerpb.Peer_NotifyServer) error {
	known := map[string]*peerpb.ChangeNotification{}
	err := table.Loop(stream.Context(), 0, func(w *table.Watch) error {
		rows, changed := p.Nodes.AllWatch(p.DB.ReadTxn())
		w.Add(changed)
		seen := map[string]bool{}
		for n := range rows {
			next := p.notification(n)
			if next.GetAddress() == "" {
				continue
			}
			seen[next.GetName()] = true
			last := known[next.GetName()]
			if last != nil && last.GetAddress() == next.GetAddress() {
				continue
			}
			next.Type = peerpb.ChangeNotificationType_PEER_ADDED
			if last != nil {
				next.Type = peerpb.ChangeNotificationType_PEER_UPDATED
			}
			known[next.GetName()] = next
			if err := stream.Send(next); err != nil {
				return err
			}
		}
		return p.gone(known, seen, stream)
	})
	if err == nil {
		err = status.FromContextError(context.Cause(stream.Context())).Err()
	}
	return err
}

// gone reports nodes that no longer exist.
func (p *Peers) gone(known map[string]*peerpb.ChangeNotification, seen map[string]bool,
	stream peerpb.Peer_NotifyServer,
) error {
	for name, last := range known {
		if seen[name] {
			continue
		}
		delete(known, name)
		last.Type = peerpb.ChangeNotificationType_PEER_DELETED
		if err := stream.Send(last); err != nil {
			return err
		}
	}
	return nil
}

// notification has no address for a node that has none.
func (p *Peers) notification(n *cluster.Node) *peerpb.ChangeNotification {
	out := &peerpb.ChangeNotification{Name: peerName(p.Cluster, n.Name)}
	first, second := n.IPv4(), n.IPv6()
	if p.IPv6 {
		first, second = second, first
	}
	if !first.IsValid() {
		first = second
	}
	if first.IsValid() {
		out.Address = net.JoinHostPort(first.String(), strconv.Itoa(int(p.Port)))
	}
	if p.TLS {
		out.Tls = &peerpb.TLS{ServerName: ServerName(p.Cluster, n.Name)}
	}
	return out
}

// peerName is a node's name as a peer: "node" in the cluster default, else "cluster/node".
func peerName(cluster, node string) string {
	if cluster == "" || cluster == "default" {
		return node
	}
	return cluster + "/" + node
}

// NodeName is a node's name in flows: "cluster/node".
func NodeName(cluster, node string) string {
	if cluster == "" {
		cluster = "default"
	}
	return cluster + "/" + node
}

// ServerName is the name in a node's certificate, that of Cilium: "node.cluster.hubble-grpc.cilium.io" with hyphens for
// the dots of both, so that one wildcard covers the nodes of a cluster.
func ServerName(cluster, node string) string {
	if cluster == "" {
		cluster = "default"
	}
	dots := strings.NewReplacer(".", "-")
	return dots.Replace(node) + "." + dots.Replace(cluster) + ".hubble-grpc.cilium.io"
}
