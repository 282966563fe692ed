package ipsec

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netlink"

	"myelin/cluster"
)

// Peer is another node that IPsec's packets are exchanged with: the row that its states and policies follow.
type Peer struct {
	Node string `json:"node"`
	Way  way    `json:"way"` // to the peer
	// Keys are the identifiers of the keys that packets of the peer may have, newest first. Packets to it have that of
	// Out.
	Keys     []int          `json:"keys"`
	Out      int            `json:"out"`
	Prefixes []netip.Prefix `json:"prefixes"` // destinations of packets to the peer, and sources of those from it
	// Device is the index of the device that packets pass.
	Device  int               `json:"device"`
	Problem string            `json:"problem,omitempty"`
	Status  reconciler.Status `json:"status"`

	secrets []held // those of Keys
}

// Equal reports whether two rows want the same.
func (p *Peer) Equal(o *Peer) bool {
	return p.Node == o.Node && p.Way == o.Way && slices.Equal(p.Keys, o.Keys) && p.Out == o.Out &&
		slices.Equal(p.Prefixes, o.Prefixes) && p.Device == o.Device && p.Problem == o.Problem
}

// TableHeader names the columns of TableRow.
func (*Peer) TableHeader() []string {
	return []string{"Node", "From", "To", "Keys", "Out", "Prefixes", "Status"}
}

// TableRow is the row as text.
func (p *Peer) TableRow() []string {
	ids := make([]string, len(p.Keys))
	for i, id := range p.Keys {
		ids[i] = strconv.Itoa(id)
	}
	return []string{p.Node, p.Way.From.String(), p.Way.To.String(), strings.Join(ids, ","), strconv.Itoa(p.Out),
		joinPrefixes(p.Prefixes), p.Status.String()}
}

func joinPrefixes(list []netip.Prefix) string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}

func peerName() statedb.Index[*Peer, string] {
	return statedb.Index[*Peer, string]{
		Name:       "node",
		FromObject: func(p *Peer) index.KeySet { return index.NewKeySet(index.String(p.Node)) },
		FromKey:    index.String, FromString: index.FromString, Unique: true,
	}
}

func peerOf(node string) statedb.Query[*Peer] {
	i := peerName()
	return i.Query(node)
}

// peerInput is all that peers are derived from.
type peerInput struct {
	node    string // name of this node
	epoch   string // of this node
	device  int    // index of the device; 0: there is none
	ipv6    bool   // nodes send to each other's IPv6 addresses
	secrets []held
	nodes   []*cluster.Node
	outside map[string][]netip.Prefix // pods in no podCIDR of their Node, by node
}

// derivePeers is a pure function: one peer for each other node that has published an epoch.
func derivePeers(in peerInput) (peers []*Peer) {
	if in.device == 0 || len(in.secrets) == 0 {
		return nil
	}
	var from netip.Addr
	epochs := map[string]string{in.epoch: in.node}
	for _, n := range in.nodes {
		if n.Name == in.node {
			from = n.IPsecAddress(in.ipv6)
		}
	}
	for _, n := range in.nodes {
		if n.Name == in.node || n.IPsec.Epoch == "" {
			continue
		}
		p := &Peer{
			Node: n.Name, Way: way{from, n.IPsecAddress(in.ipv6), in.epoch, n.IPsec.Epoch}, Device: in.device,
			Out: outbound(in.secrets, n.IPsec.Key).ID, secrets: in.secrets, Status: reconciler.StatusPending(),
		}
		for _, s := range in.secrets {
			p.Keys = append(p.Keys, s.ID)
		}
		for _, list := range [][]netip.Prefix{n.PodCIDRs, in.outside[n.Name]} {
			for _, prefix := range list {
				p.Prefixes = append(p.Prefixes, prefix.Masked())
			}
		}
		for _, a := range n.Addresses {
			p.Prefixes = append(p.Prefixes, netip.PrefixFrom(a, a.BitLen()))
		}
		p.Problem = problemOf(p, epochs[n.IPsec.Epoch])
		epochs[n.IPsec.Epoch] = n.Name
		peers = append(peers, p)
	}
	return peers
}

// problemOf says why a peer can't be reached; same: the node that has the same epoch, empty: none.
func problemOf(p *Peer, same string) string {
	switch {
	case !p.Way.From.IsValid():
		return "this node has no address of the underlay's family (underlayProtocol)"
	case !p.Way.To.IsValid():
		return fmt.Sprintf("node %s has no address of the underlay's family (underlayProtocol)", p.Node)
	case p.Way.From == p.Way.To:
		return fmt.Sprintf("node %s has this node's address %s", p.Node, p.Way.To)
	case same != "":
		return fmt.Sprintf("nodes %s and %s have the same epoch: remove the folder ipsec of the run directory on "+
			"one of them, and restart its agent", same, p.Node)
	}
	return ""
}

// objects are what the kernel must have for a peer, in the order in which it is made: a packet that comes with a key
// finds its state before any is sent with it.
type objects struct {
	states   []state
	policies []policy
}

// objects derives what the kernel must have.
func (p *Peer) objects() (o objects, err error) {
	var out uint32
	for i := range p.secrets {
		s := &p.secrets[i]
		k, err := s.derive(p.Way.back())
		if err != nil {
			return o, err
		}
		o.states = append(o.states, state{from: p.Way.To, to: p.Way.From, keys: k})
	}
	for i := range p.secrets {
		s := &p.secrets[i]
		if s.ID != p.Out {
			continue
		}
		k, err := s.derive(p.Way)
		if err != nil {
			return o, err
		}
		o.states = append(o.states, state{from: p.Way.From, to: p.Way.To, keys: k, sends: true})
		out = k.SPI
	}
	for _, prefix := range p.Prefixes {
		o.policies = append(o.policies,
			policy{netlink.XFRM_DIR_IN, prefix, p.Way.To, p.Way.From, 0},
			policy{netlink.XFRM_DIR_FWD, prefix, p.Way.To, p.Way.From, 0},
			policy{netlink.XFRM_DIR_OUT, prefix, p.Way.From, p.Way.To, out})
	}
	return o, nil
}
