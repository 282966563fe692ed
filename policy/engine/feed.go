package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/endpoint"
	"myelin/policy"
	"myelin/policy/compile"
	"myelin/policy/identity"
)

// feed tells a compiler what changes in the tables that policies depend on.
type feed struct {
	*Params
	compiler *compile.Compiler
	audits   map[uint16]bool // slots of endpoints whose denials are only reported

	policies       *policy.Follower
	clusterChanges *cluster.Follower
	namespaces     statedb.ChangeIterator[*cluster.Namespace]
	identities     statedb.ChangeIterator[*identity.Identity]
	addresses      statedb.ChangeIterator[*identity.Address]
	endpoints      statedb.ChangeIterator[*endpoint.Endpoint]
}

// newFeed begins with all that the tables have. audits is shared with its caller.
func newFeed(p *Params, c *compile.Compiler, audits map[uint16]bool) (*feed, error) {
	f := &feed{Params: p, compiler: c, audits: audits}
	var errs [6]error
	f.policies, errs[0] = p.Policies.Follow(p.DB)
	f.clusterChanges, errs[1] = p.Cluster.Follow(p.DB)
	txn := p.DB.WriteTxn(p.Cluster.Namespaces, p.Identities, p.Addresses, p.Endpoints)
	defer txn.Commit()
	f.namespaces, errs[2] = p.Cluster.Namespaces.Changes(txn)
	f.identities, errs[3] = p.Identities.Changes(txn)
	f.addresses, errs[4] = p.Addresses.Changes(txn)
	f.endpoints, errs[5] = p.Endpoints.Changes(txn)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("follow the tables that policies depend on: %w", err)
	}
	return f, nil
}

// learn tells the compiler what has changed, and returns what to wait for.
// Identities come before the addresses that have them, and go after them.
func (f *feed) learn(r statedb.ReadTxn, first bool) []<-chan struct{} {
	c := f.compiler
	identities, more1 := f.identities.Next(r)
	addresses, more2 := f.addresses.Next(r)
	namespaces, more3 := f.namespaces.Next(r)
	endpoints, more4 := f.endpoints.Next(r)
	var forgotten []uint32
	for ch := range identities {
		if ch.Deleted {
			forgotten = append(forgotten, ch.Object.ID)
		} else {
			c.Identify(ch.Object.ID, ch.Object.Labels)
		}
	}
	for ch := range addresses {
		id := ch.Object.ID
		if ch.Deleted {
			id = identity.Unknown
		}
		c.SetAddress(ch.Object.Addr, id)
	}
	for _, id := range forgotten {
		c.Forget(id)
	}
	objects := f.policies.Next(r)
	f.learnGroups(objects)
	pods, nodes := map[string]bool{}, map[string]bool{}
	changes := f.clusterChanges.Next(r)
	f.learnCluster(changes, r, pods, nodes)
	for ch := range namespaces {
		for p := range cluster.PodsByNamespace(f.Cluster.Pods, r, ch.Object.Name) {
			pods[p.Key().String()] = true
		}
	}
	for ch := range endpoints {
		if f.endpointChanged(ch); !ch.Deleted {
			pods[ch.Object.PodName()] = true
		}
	}
	for name := range pods {
		for ep := range f.Endpoints.List(r, endpoint.ByPod(name)) {
			f.setEndpoint(ep, r)
		}
	}
	if nodes[f.Node] || first {
		f.setHost(r)
	}
	for ch := range objects.Policies {
		if ch.Deleted {
			c.SetPolicy(ch.Object.Ref, nil)
		} else {
			c.SetPolicy(ch.Object.Ref, ch.Object.Specs)
		}
	}
	return append(append(changes.More[:], objects.More[:]...), more1, more2, more3, more4)
}

func (f *feed) learnGroups(objects policy.Changes) {
	for ch := range objects.Groups {
		if ch.Deleted {
			f.compiler.SetGroup(ch.Object.Name, nil)
		} else {
			f.compiler.SetGroup(ch.Object.Name, compile.FactsOf(ch.Object))
		}
	}
}

// learnCluster takes changes of the cluster, and notes the pods and nodes.
func (f *feed) learnCluster(changes cluster.Changes, r statedb.ReadTxn, pods, nodes map[string]bool) {
	c := f.compiler
	for ch := range changes.Nodes {
		n := ch.Object
		nodes[n.Name] = true
		if ch.Deleted {
			c.SetNode(n.Name, nil)
			continue
		}
		c.SetNode(n.Name, &compile.NodeFacts{Labels: compile.PlainLabels("k8s", n.Labels),
			Addresses: identity.NodeAddresses(n), PodCIDRs: n.PodCIDRs})
	}
	for ch := range changes.Pods {
		p := ch.Object
		pods[p.Key().String()] = true
		if ch.Deleted || !p.OwnsAddresses() {
			c.SetPod(p.Key(), nil, nil)
		} else {
			c.SetPod(p.Key(), p.Addresses, p.Ports)
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
		c.SetService(key, f.serviceFacts(key, r))
	}
}

func (f *feed) serviceFacts(key cluster.Key, r statedb.ReadTxn) compile.ServiceFacts {
	facts := compile.ServiceFacts{Namespace: key.Namespace, Name: key.Name}
	if s, _, ok := f.Cluster.Services.Get(r, cluster.ServiceByKey(key)); ok {
		facts.Known, facts.Selector, facts.Labels = true, s.Selector, compile.PlainLabels("k8s", s.Labels)
	}
	if facts.Selector != nil {
		return facts
	}
	for slice := range f.Cluster.Slices.List(r, cluster.SlicesByService(key)) {
		for _, ep := range slice.Endpoints {
			facts.Addresses = append(facts.Addresses, ep.Address)
		}
	}
	return facts
}

// endpointChanged forgets endpoints that are gone.
func (f *feed) endpointChanged(ch statedb.Change[*endpoint.Endpoint]) {
	ep := ch.Object
	t := f.compiler.Endpoint(ep.ID)
	if (ch.Deleted || ep.Deleting()) && t != nil && t.Attachment == ep.Attachment().String() {
		f.compiler.RemoveEndpoint(ep.ID)
	}
}

// setEndpoint tells the compiler what an endpoint is now.
func (f *feed) setEndpoint(ep *endpoint.Endpoint, r statedb.ReadTxn) {
	if ep.Deleting() {
		return
	}
	labels := []string{"reserved:init"}
	var ports []compile.PortBinding
	pod, _, known := f.Cluster.Pods.Get(r, cluster.PodByKey(ep.Namespace, ep.Pod))
	if known = known && ep.Pod != ""; known {
		ns, _, _ := f.Cluster.Namespaces.Get(r, cluster.NamespaceByName(ep.Namespace))
		labels, ports = identity.Labels(pod, ns, f.ClusterName), compile.PortBindings(pod.Ports)
	}
	c := f.compiler
	if old := c.Endpoint(ep.ID); old != nil && old.Attachment != ep.Attachment().String() {
		c.RemoveEndpoint(ep.ID)
		delete(f.audits, ep.ID)
	}
	c.SetEndpoint(ep.ID, labels, ports, false, f.audits[ep.ID])
	c.DescribeEndpoint(ep.ID, ep.PodName(), ep.Attachment().String(), !known && ep.Pod != "")
}

// setHost tells the compiler what labels this node has.
func (f *feed) setHost(r statedb.ReadTxn) {
	if !f.Config.Host {
		return
	}
	labels := []string{"reserved:host"}
	if n, _, ok := f.Cluster.Nodes.Get(r, cluster.NodeByName(f.Node)); ok {
		for k, v := range n.Labels {
			labels = append(labels, "k8s:"+k+"="+v)
		}
	}
	slices.Sort(labels)
	f.compiler.SetEndpoint(endpoint.HostID, labels, nil, true, f.audits[endpoint.HostID])
	f.compiler.Endpoint(endpoint.HostID).Name = "host"
}
