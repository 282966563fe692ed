// Package identity numbers label sets. An identity is local to the node: each
// node numbers the sets that it sees and finds a peer's identity by its
// address, so that nothing has to be agreed on in the cluster.
package identity

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Reserved identities have the numbers and names of Cilium's.
const (
	Unknown    uint32 = 0
	Host       uint32 = 1 // this node
	World      uint32 = 2
	Health     uint32 = 4
	Init       uint32 = 5
	RemoteNode uint32 = 6
	Ingress    uint32 = 8
	WorldIPv4  uint32 = 9  // outside the cluster, by IPv4
	WorldIPv6  uint32 = 10 // outside the cluster, by IPv6
)

// First is the first number of a label set; the last is 2^32-1.
const First uint32 = 1 << 16

// reservedNames are indexed by number.
func reservedNames() []string {
	return []string{
		"unknown", "host", "world", "unmanaged", "health", "init", "remote-node",
		"kube-apiserver", "ingress", "world-ipv4", "world-ipv6",
	}
}

// Identity is a label set and its number.
type Identity struct {
	ID uint32 `json:"id"`
	// Labels are sorted, each "source:key=value", or "reserved:name".
	Labels []string `json:"labels"`
	// Refs is the number of pods that have the labels. A row without any is
	// kept for a while, so that a pod that comes back finds its number.
	Refs int `json:"refs"`
}

// TableHeader names the columns of TableRow.
func (*Identity) TableHeader() []string { return []string{"ID", "Labels", "Refs"} }

// TableRow is the row as text.
func (i *Identity) TableRow() []string {
	return []string{strconv.FormatUint(uint64(i.ID), 10), strings.Join(i.Labels, " "), strconv.Itoa(i.Refs)}
}

// Address says whose an address is.
type Address struct {
	Addr netip.Addr `json:"address"`
	ID   uint32     `json:"id"`
	// Owner is "pod namespace/name" or "node name".
	Owner string `json:"owner"`
}

// TableHeader names the columns of TableRow.
func (*Address) TableHeader() []string { return []string{"Address", "ID", "Owner"} }

// TableRow is the row as text.
func (a *Address) TableRow() []string {
	return []string{a.Addr.String(), strconv.FormatUint(uint64(a.ID), 10), a.Owner}
}

// ByID finds an identity by its number.
func ByID(id uint32) statedb.Query[*Identity] { return identityIDs().Query(id) }

// byLabels finds the identity of a sorted label set.
func byLabels(labels []string) statedb.Query[*Identity] {
	return identityLabels().Query(labelKey(labels))
}

// ByAddress finds the owner of an address.
func ByAddress(addr netip.Addr) statedb.Query[*Address] { return addresses().Query(addr) }

func identityIDs() statedb.Index[*Identity, uint32] {
	return statedb.Index[*Identity, uint32]{
		Name:       "id",
		FromObject: func(i *Identity) index.KeySet { return index.NewKeySet(index.Uint32(i.ID)) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
		Unique:     true,
	}
}

func identityLabels() statedb.Index[*Identity, string] {
	return statedb.Index[*Identity, string]{
		Name:       "labels",
		FromObject: func(i *Identity) index.KeySet { return index.NewKeySet(index.String(labelKey(i.Labels))) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}
}

func addresses() statedb.Index[*Address, netip.Addr] {
	return statedb.Index[*Address, netip.Addr]{
		Name:       "address",
		FromObject: func(a *Address) index.KeySet { return index.NewKeySet(index.NetIPAddr(a.Addr)) },
		FromKey:    index.NetIPAddr,
		FromString: index.NetIPAddrString,
		Unique:     true,
	}
}

func newTables(db *statedb.DB) (statedb.RWTable[*Identity], statedb.RWTable[*Address], error) {
	ids, err := statedb.NewTable(db, "identities", identityIDs(), identityLabels())
	if err != nil {
		return nil, nil, fmt.Errorf("create table identities: %w", err)
	}
	addrs, err := statedb.NewTable(db, "identity-addresses", addresses())
	if err != nil {
		return nil, nil, fmt.Errorf("create table identity-addresses: %w", err)
	}
	return ids, addrs, nil
}
