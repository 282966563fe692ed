package cluster

import (
	"fmt"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Detour is another node that is reached by another WireGuard device than the usual one, while one of both rotates its
// key.
type Detour struct {
	Node   string
	Device string // name
}

// TableHeader names the columns of TableRow.
func (*Detour) TableHeader() []string { return []string{"Node", "Device"} }

// TableRow is the row as text.
func (d *Detour) TableRow() []string { return []string{d.Node, d.Device} }

// Equal reports whether two rows say the same.
func (d *Detour) Equal(o *Detour) bool { return *d == *o }

// Detours is the table of Detour as its readers want it.
type Detours struct {
	ByNode   map[string]string // name of the device
	Revision statedb.Revision
	Changed  <-chan struct{} // nil: it never does
}

// ReadDetours reads t; if it is nil, there are none.
func ReadDetours(txn statedb.ReadTxn, t statedb.Table[*Detour]) (d Detours) {
	if t == nil {
		return Detours{}
	}
	rows, changed := t.AllWatch(txn)
	d = Detours{Revision: t.Revision(txn), Changed: changed}
	for row := range rows {
		if d.ByNode == nil {
			d.ByNode = map[string]string{}
		}
		d.ByNode[row.Node] = row.Device
	}
	return d
}

// NewDetourTable creates the table "encryption-detours".
func NewDetourTable(db *statedb.DB) (statedb.RWTable[*Detour], error) {
	rows, err := statedb.NewTable(db, "encryption-detours", detourNode())
	if err != nil {
		return nil, fmt.Errorf("create table encryption-detours: %w", err)
	}
	return rows, nil
}

func detourNode() statedb.Index[*Detour, string] {
	return statedb.Index[*Detour, string]{
		Name:       "node",
		FromObject: func(d *Detour) index.KeySet { return index.NewKeySet(index.String(d.Node)) },
		FromKey:    index.String, FromString: index.FromString, Unique: true,
	}
}

// DetourOf queries the detour to a node.
func DetourOf(node string) statedb.Query[*Detour] {
	i := detourNode()
	return i.Query(node)
}
