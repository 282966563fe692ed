package policy

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/endpoint"
	"myelin/identity"
)

// follower reads what changes in all tables that policies depend on.
type follower struct {
	policies   *Follower
	cluster    *cluster.Follower
	namespaces statedb.ChangeIterator[*cluster.Namespace]
	identities statedb.ChangeIterator[*identity.Identity]
	addresses  statedb.ChangeIterator[*identity.Address]
	endpoints  statedb.ChangeIterator[*endpoint.Endpoint]
}

func (e *Engine) follow() (*follower, error) {
	f := &follower{}
	var errs [6]error
	f.policies, errs[0] = e.Policies.Follow(e.DB)
	f.cluster, errs[1] = e.Cluster.Follow(e.DB)
	txn := e.DB.WriteTxn(e.Cluster.Namespaces, e.Identities, e.Addresses, e.Endpoints)
	defer txn.Commit()
	f.namespaces, errs[2] = e.Cluster.Namespaces.Changes(txn)
	f.identities, errs[3] = e.Identities.Changes(txn)
	f.addresses, errs[4] = e.Addresses.Changes(txn)
	f.endpoints, errs[5] = e.Endpoints.Changes(txn)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("follow the tables that policies depend on: %w", err)
	}
	return f, nil
}

// learn tells the compiler what has changed, and returns what to wait for.
// Identities come before the addresses that have them, and go after them.
func (e *Engine) learn(f *follower, r statedb.ReadTxn) []<-chan struct{} {
	c := e.compiler
	identities, more1 := f.identities.Next(r)
	addresses, more2 := f.addresses.Next(r)
	namespaces, more3 := f.namespaces.Next(r)
	endpoints, more4 := f.endpoints.Next(r)
	var forgotten []uint32
	for ch := range identities {
		if ch.Deleted {
			forgotten = append(forgotten, ch.Object.ID)
		} else {
			c.peers.identify(ch.Object.ID, ch.Object.Labels)
		}
	}
	for ch := range addresses {
		id := ch.Object.ID
		if ch.Deleted {
			id = identity.Unknown
		}
		c.setAddress(ch.Object.Addr, id)
	}
	for _, id := range forgotten {
		c.peers.forget(id)
	}
	objects := f.policies.Next(r)
	e.learnGroups(objects)
	pods, nodes := map[string]bool{}, map[string]bool{}
	changes := f.cluster.Next(r)
	e.learnCluster(changes, r, pods, nodes)
	for ch := range namespaces {
		for p := range cluster.PodsByNamespace(e.Cluster.Pods, r, ch.Object.Name) {
			pods[p.Key().String()] = true
		}
	}
	for ch := range endpoints {
		if e.endpointChanged(ch); !ch.Deleted {
			pods[ch.Object.PodName()] = true
		}
	}
	for name := range pods {
		for ep := range e.Endpoints.List(r, endpoint.ByPod(name)) {
			e.setEndpoint(ep, r)
		}
	}
	if nodes[e.Node] || !e.began {
		e.setHost(r)
	}
	for ch := range objects.Policies {
		if ch.Deleted {
			c.setPolicy(ch.Object.Ref, nil)
		} else {
			c.setPolicy(ch.Object.Ref, ch.Object.Specs)
		}
	}
	return append(append(changes.More[:], objects.More[:]...), more1, more2, more3, more4)
}

func (e *Engine) learnGroups(objects Changes) {
	for ch := range objects.Groups {
		if ch.Deleted {
			e.compiler.setGroup(ch.Object.Name, nil)
		} else {
			e.compiler.setGroup(ch.Object.Name, factsOf(ch.Object))
		}
	}
}

func factsOf(g *Group) *groupFacts {
	return &groupFacts{labels: plainLabels("k8s", g.Labels), prefixes: g.Prefixes, unclear: g.InForce == Closed}
}

// learnCluster takes changes of the cluster, and notes the pods and nodes.
func (e *Engine) learnCluster(changes cluster.Changes, r statedb.ReadTxn, pods, nodes map[string]bool) {
	c := e.compiler
	for ch := range changes.Nodes {
		n := ch.Object
		nodes[n.Name] = true
		if ch.Deleted {
			c.setNode(n.Name, nil)
			continue
		}
		c.setNode(n.Name, &nodeFacts{labels: plainLabels("k8s", n.Labels), addresses: identity.NodeAddresses(n), podCIDRs: n.PodCIDRs})
	}
	for ch := range changes.Pods {
		p := ch.Object
		pods[p.Key().String()] = true
		if ch.Deleted || !p.OwnsAddresses() {
			c.setPod(p.Key(), nil, nil)
		} else {
			c.setPod(p.Key(), p.Addresses, p.Ports)
		}
	}
	touched := map[cluster.Key]bool{}
	for ch := range changes.Services {
		touched[ch.Object.Key()] = true
	}
	for ch := range changes.Slices {
		touched[ch.Object.ServiceKey()] = true
	}
	for key := range touched {
		c.setService(key, e.serviceFacts(key, r))
	}
}

func (e *Engine) serviceFacts(key cluster.Key, r statedb.ReadTxn) serviceFacts {
	f := serviceFacts{namespace: key.Namespace, name: key.Name}
	if s, _, ok := e.Cluster.Services.Get(r, cluster.ServiceByKey(key)); ok {
		f.known, f.selector, f.labels = true, s.Selector, plainLabels("k8s", s.Labels)
	}
	if f.selector != nil {
		return f
	}
	for slice := range e.Cluster.Slices.List(r, cluster.SlicesByService(key)) {
		for _, ep := range slice.Endpoints {
			f.addresses = append(f.addresses, ep.Address)
		}
	}
	return f
}

// endpointChanged forgets endpoints that are gone.
func (e *Engine) endpointChanged(ch statedb.Change[*endpoint.Endpoint]) {
	ep := ch.Object
	t := e.compiler.targets[ep.ID]
	if (ch.Deleted || ep.Deleting()) && t != nil && t.attachment == ep.Attachment().String() {
		e.compiler.removeTarget(ep.ID)
	}
}

// setEndpoint tells the compiler what an endpoint is now.
func (e *Engine) setEndpoint(ep *endpoint.Endpoint, r statedb.ReadTxn) {
	if ep.Deleting() {
		return
	}
	labels := []string{"reserved:init"}
	var ports []binding
	pod, _, known := e.Cluster.Pods.Get(r, cluster.PodByKey(ep.Namespace, ep.Pod))
	if known = known && ep.Pod != ""; known {
		ns, _, _ := e.Cluster.Namespaces.Get(r, cluster.NamespaceByName(ep.Namespace))
		labels, ports = identity.Labels(pod, ns, e.ClusterName), bindingsOf(pod.Ports)
	}
	c := e.compiler
	if old := c.targets[ep.ID]; old != nil && old.attachment != ep.Attachment().String() {
		c.removeTarget(ep.ID)
		delete(e.audits, ep.ID)
	}
	c.setTarget(ep.ID, labels, ports, false, e.audits[ep.ID])
	t := c.targets[ep.ID]
	unknown := !known && ep.Pod != ""
	if t.unknown != unknown || t.attachment == "" {
		c.dirty[t.subject] = struct{}{}
	}
	t.name, t.attachment, t.unknown = ep.PodName(), ep.Attachment().String(), unknown
}

// setHost tells the compiler what labels this node has.
func (e *Engine) setHost(r statedb.ReadTxn) {
	if !e.Config.Host {
		return
	}
	labels := []string{"reserved:host"}
	if n, _, ok := e.Cluster.Nodes.Get(r, cluster.NodeByName(e.Node)); ok {
		for k, v := range n.Labels {
			labels = append(labels, "k8s:"+k+"="+v)
		}
	}
	slices.Sort(labels)
	e.compiler.setTarget(endpoint.HostID, labels, nil, true, e.audits[endpoint.HostID])
	t := e.compiler.targets[endpoint.HostID]
	t.name = "host"
}
