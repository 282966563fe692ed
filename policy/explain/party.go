package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/identity"
)

// entities are the reserved identities that can be named without an address.
func entities() []string {
	return []string{"world", "world-ipv4", "world-ipv6", "host", "remote-node", "kube-apiserver", "health", "ingress",
		"init", "unmanaged"}
}

// parties resolves a name, to one party for each address. With services, a
// Service's name isn't refused as that of no pod.
func (x *Explainer) parties(r statedb.ReadTxn, name string, services bool) ([]Party, error) {
	if name == "" {
		return nil, fmt.Errorf("must be set")
	}
	if a, err := netip.ParseAddr(name); err == nil {
		return []Party{x.partyAt(r, a.Unmap())}, nil
	}
	if n, ok := strings.CutPrefix(name, "node/"); ok {
		return x.nodeParties(r, n)
	}
	switch entity := strings.TrimPrefix(name, "reserved:"); {
	case entity == "host":
		return x.nodeParties(r, x.engine.Node)
	case entity == "world":
		return []Party{world("world-ipv4"), world("world-ipv6")}, nil
	case slices.Contains(entities(), entity):
		return []Party{world(entity)}, nil
	case entity == "all" || entity == "cluster":
		return nil, fmt.Errorf("is many: name one of them, an address, or one of %s", strings.Join(entities(), ", "))
	}
	key := keyOf(strings.TrimPrefix(name, "pod/"))
	p, _, ok := x.engine.Cluster.Pods.Get(r, cluster.PodByKey(key.Namespace, key.Name))
	if !ok {
		if services {
			return nil, fmt.Errorf("there is no pod and no Service %s", key)
		}
		return nil, fmt.Errorf("there is no pod %s: want NAMESPACE/POD, an address, node/NAME, or one of %s", key,
			strings.Join(entities(), ", "))
	}
	return x.podParties(r, p), nil
}

func world(entity string) Party {
	return Party{Name: entity, Labels: []string{"reserved:" + entity}}
}

// keyOf reads "namespace/name"; without a namespace "default" is meant, as in
// kubectl.
func keyOf(name string) cluster.Key {
	if namespace, rest, ok := strings.Cut(name, "/"); ok {
		return cluster.Key{Namespace: namespace, Name: rest}
	}
	return cluster.Key{Namespace: "default", Name: name}
}

func (x *Explainer) podParties(r statedb.ReadTxn, p *cluster.Pod) (out []Party) {
	ns, _, _ := x.engine.Cluster.Namespaces.Get(r, cluster.NamespaceByName(p.Namespace))
	labels := identity.Labels(p, ns, x.engine.ClusterName)
	name := p.Key().String()
	if p.HostNetwork { // has the policies of its node
		labels = nil
	}
	for _, a := range p.Addresses {
		out = append(out, Party{Name: name, Addr: a, Node: p.NodeName, Labels: labels})
	}
	if len(out) == 0 {
		out = []Party{{Name: name, Node: p.NodeName, Labels: labels}}
	}
	return out
}

// nodeParties are a node's own addresses.
func (x *Explainer) nodeParties(r statedb.ReadTxn, name string) (out []Party, err error) {
	n, _, ok := x.engine.Cluster.Nodes.Get(r, cluster.NodeByName(name))
	if !ok {
		return nil, fmt.Errorf("there is no node %s", name)
	}
	for _, a := range n.Addresses {
		out = append(out, x.nodeParty(n, a))
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("node %s has no addresses", name)
	}
	return out, nil
}

// nodeParty is a node by one of its addresses; endpoints call their own "host".
func (x *Explainer) nodeParty(n *cluster.Node, a netip.Addr) Party {
	name := "node/" + n.Name
	if n.Name == x.engine.Node {
		name = "host"
	}
	return Party{Name: name, Addr: a, Node: n.Name}
}

// partyAt is the party that has an address.
func (x *Explainer) partyAt(r statedb.ReadTxn, a netip.Addr) Party {
	for p := range x.engine.Cluster.Pods.List(r, cluster.PodsByAddress(a)) {
		if p.OwnsAddresses() {
			for _, party := range x.podParties(r, p) {
				if party.Addr == a {
					return party
				}
			}
		}
	}
	for n := range x.engine.Cluster.Nodes.All(r) {
		if slices.Contains(identity.NodeAddresses(n), a) {
			return x.nodeParty(n, a)
		}
	}
	return Party{Name: a.String(), Addr: a}
}

// targets finds where a flow goes. A Service means each of its backends, at the
// backend's port.
func (x *Explainer) targets(r statedb.ReadTxn, to, port string) (out []target, err error) {
	p, err := ParsePort(port)
	if err != nil {
		return nil, err
	}
	if s := x.service(r, to); s != nil {
		return x.backends(r, s, p)
	}
	parties, err := x.parties(r, to, true)
	if err != nil {
		return nil, fmt.Errorf("--to %s: %w", to, err)
	}
	for _, d := range parties {
		q, err := x.numbered(r, d, p)
		if err != nil {
			return nil, err
		}
		out = append(out, target{d, q})
	}
	return out, nil
}

// numbered replaces a port's name by the number that the pod gives it.
func (x *Explainer) numbered(r statedb.ReadTxn, d Party, p policy.Port) (policy.Port, error) {
	if p.Name == "" {
		return p, nil
	}
	key := keyOf(d.Name)
	pod, _, ok := x.engine.Cluster.Pods.Get(r, cluster.PodByKey(key.Namespace, key.Name))
	if ok {
		for _, q := range pod.Ports {
			if q.Name == p.Name && protocol(q.Protocol) == p.Proto {
				p.Name, p.First, p.Last = "", q.Number, q.Number
				return p, nil
			}
		}
	}
	return p, fmt.Errorf("--port %s: %s has no port of that name", p, d.Name)
}

func protocol(name string) uint8 {
	p, err := ParsePort("0/" + name)
	if err != nil {
		return policy.ProtoTCP // what Kubernetes means by none
	}
	return p.Proto
}

// service is the Service that a name or an address means; a pod of the name
// comes first.
func (x *Explainer) service(r statedb.ReadTxn, name string) *cluster.Service {
	if a, err := netip.ParseAddr(name); err == nil {
		for s := range x.engine.Cluster.Services.All(r) {
			if slices.Contains(slices.Concat(s.ClusterIPs, s.ExternalIPs, s.Ingress), a) {
				return s
			}
		}
		return nil
	}
	plain, only := strings.CutPrefix(name, "service/")
	key := keyOf(plain)
	if _, _, pod := x.engine.Cluster.Pods.Get(r, cluster.PodByKey(key.Namespace, key.Name)); pod && !only {
		return nil
	}
	s, _, _ := x.engine.Cluster.Services.Get(r, cluster.ServiceByKey(key))
	return s
}

func (x *Explainer) backends(r statedb.ReadTxn, s *cluster.Service, p policy.Port) (out []target, err error) {
	var have []string
	at := slices.IndexFunc(s.Ports, func(q cluster.ServicePort) bool {
		have = append(have, q.String())
		return protocol(q.Protocol) == p.Proto && (q.Port == p.First && p.Name == "" ||
			p.Name != "" && q.Name == p.Name)
	})
	if at < 0 {
		return nil, fmt.Errorf("--port %s: Service %s has %s", p, s.Key(), strings.Join(have, ", "))
	}
	for slice := range x.engine.Cluster.Slices.List(r, cluster.SlicesByService(s.Key())) {
		for _, q := range slice.Ports {
			if q.Name != s.Ports[at].Name || protocol(q.Protocol) != p.Proto {
				continue
			}
			for _, e := range slice.Endpoints {
				out = append(out, target{x.partyAt(r, e.Address), policy.Port{Proto: p.Proto, First: q.Port,
					Last: q.Port}})
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("--to %s: the Service has no backends, so there is no policy lookup", s.Key())
	}
	return out, nil
}
