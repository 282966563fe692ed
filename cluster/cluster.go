// Package cluster holds the desired state of the Kubernetes cluster as tables:
// nodes, namespaces, pods, Services, EndpointSlices and Secrets, reduced to what the network needs. Sources (a
// directory of manifests, an API server) write the rows; everything else reads
// them. Rows are pointers and must not be changed after they are inserted.
package cluster

import (
	"fmt"
	"iter"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Tables are the tables that describe the cluster.
type Tables struct {
	Nodes      statedb.RWTable[*Node]
	Namespaces statedb.RWTable[*Namespace]
	Pods       statedb.RWTable[*Pod]
	Services   statedb.RWTable[*Service]
	Slices     statedb.RWTable[*EndpointSlice]
	Secrets    statedb.RWTable[*Secret]
}

// NewTables creates the tables in db. It fails where a table of one of the
// names "nodes", "namespaces", "pods", "kubernetes-services" (what nodes make of
// them is in "services"), "endpoint-slices" and "secrets" exists already.
func NewTables(db *statedb.DB) (Tables, error) {
	var (
		t   Tables
		err error
	)
	if t.Nodes, err = statedb.NewTable(db, "nodes", nodeNames(), nodeAddresses()); err != nil {
		return Tables{}, fmt.Errorf("create table nodes: %w", err)
	}
	if t.Namespaces, err = statedb.NewTable(db, "namespaces", namespaceNames()); err != nil {
		return Tables{}, fmt.Errorf("create table namespaces: %w", err)
	}
	if t.Pods, err = statedb.NewTable(db, "pods", podKeys(), podAddresses()); err != nil {
		return Tables{}, fmt.Errorf("create table pods: %w", err)
	}
	if t.Services, err = statedb.NewTable(db, "kubernetes-services", serviceKeys()); err != nil {
		return Tables{}, fmt.Errorf("create table kubernetes-services: %w", err)
	}
	if t.Slices, err = statedb.NewTable(db, "endpoint-slices", sliceKeys(), sliceServices()); err != nil {
		return Tables{}, fmt.Errorf("create table endpoint-slices: %w", err)
	}
	if t.Secrets, err = statedb.NewTable(db, "secrets", secretKeys()); err != nil {
		return Tables{}, fmt.Errorf("create table secrets: %w", err)
	}
	return t, nil
}

// NodeByName finds the node of that name.
func NodeByName(name string) statedb.Query[*Node] { return nodeNames().Query(name) }

// NodeByAddress finds the nodes that have addr as an internal address; more
// than one row means that the manifests contradict each other.
func NodeByAddress(addr Addr) statedb.Query[*Node] { return nodeAddresses().Query(addr) }

// NamespaceByName finds the namespace of that name.
func NamespaceByName(name string) statedb.Query[*Namespace] { return namespaceNames().Query(name) }

// PodByKey finds one pod.
func PodByKey(namespace, name string) statedb.Query[*Pod] {
	return podKeys().Query(Key{Namespace: namespace, Name: name})
}

// PodsByNamespace yields the pods of a namespace. There is no index for that: keys
// begin with the namespace, and a cluster has many pods.
func PodsByNamespace(pods statedb.Table[*Pod], txn statedb.ReadTxn,
	namespace string) iter.Seq2[*Pod, statedb.Revision] {
	return pods.Prefix(txn, PodByKey(namespace, ""))
}

// PodsByAddress finds the pods that own addr. Pods on the host's network and
// pods that have ended own none. Kubernetes reuses addresses, and objects come
// in any order, so for a moment there may be two.
func PodsByAddress(addr Addr) statedb.Query[*Pod] { return podAddresses().Query(addr) }

// ServiceByKey finds one Service.
func ServiceByKey(k Key) statedb.Query[*Service] { return serviceKeys().Query(k) }

// SliceByKey finds one EndpointSlice.
func SliceByKey(k Key) statedb.Query[*EndpointSlice] { return sliceKeys().Query(k) }

// SlicesByService finds the EndpointSlices of a Service.
func SlicesByService(service Key) statedb.Query[*EndpointSlice] {
	return sliceServices().Query(service)
}

// The indexes are functions, not variables, so that the package has no state.

func nodeNames() statedb.Index[*Node, string] {
	return statedb.Index[*Node, string]{
		Name:       "name",
		FromObject: func(n *Node) index.KeySet { return index.NewKeySet(index.String(n.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}
}

func nodeAddresses() statedb.Index[*Node, Addr] {
	return statedb.Index[*Node, Addr]{
		Name:       "address",
		FromObject: func(n *Node) index.KeySet { return addressKeys(n.Addresses) },
		FromKey:    index.NetIPAddr,
		FromString: index.NetIPAddrString,
	}
}

func namespaceNames() statedb.Index[*Namespace, string] {
	return statedb.Index[*Namespace, string]{
		Name:       "name",
		FromObject: func(n *Namespace) index.KeySet { return index.NewKeySet(index.String(n.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}
}

func podKeys() statedb.Index[*Pod, Key] {
	return statedb.Index[*Pod, Key]{
		Name:       "key",
		FromObject: func(p *Pod) index.KeySet { return index.NewKeySet(index.Stringer(p.Key())) },
		FromKey:    func(k Key) index.Key { return index.Stringer(k) },
		FromString: index.FromString,
		Unique:     true,
	}
}

func podAddresses() statedb.Index[*Pod, Addr] {
	return statedb.Index[*Pod, Addr]{
		Name: "address",
		FromObject: func(p *Pod) index.KeySet {
			if !p.OwnsAddresses() {
				return index.NewKeySet()
			}
			return addressKeys(p.Addresses)
		},
		FromKey:    index.NetIPAddr,
		FromString: index.NetIPAddrString,
	}
}

func serviceKeys() statedb.Index[*Service, Key] {
	return statedb.Index[*Service, Key]{
		Name:       "key",
		FromObject: func(s *Service) index.KeySet { return index.NewKeySet(index.Stringer(s.Key())) },
		FromKey:    index.Stringer[Key],
		FromString: index.FromString,
		Unique:     true,
	}
}

func sliceKeys() statedb.Index[*EndpointSlice, Key] {
	return statedb.Index[*EndpointSlice, Key]{
		Name:       "key",
		FromObject: func(s *EndpointSlice) index.KeySet { return index.NewKeySet(index.Stringer(s.Key())) },
		FromKey:    index.Stringer[Key],
		FromString: index.FromString,
		Unique:     true,
	}
}

func sliceServices() statedb.Index[*EndpointSlice, Key] {
	return statedb.Index[*EndpointSlice, Key]{
		Name:       "service",
		FromObject: func(s *EndpointSlice) index.KeySet { return index.NewKeySet(index.Stringer(s.ServiceKey())) },
		FromKey:    index.Stringer[Key],
		FromString: index.FromString,
	}
}

func addressKeys(addrs []Addr) index.KeySet {
	keys := make([]index.Key, 0, len(addrs))
	for _, a := range addrs {
		keys = append(keys, index.NetIPAddr(a))
	}
	return index.NewKeySet(keys...)
}
