package encryption

import (
	"fmt"
	"maps"
	"path/filepath"

	"myelin/cluster"
	"myelin/internal/durable"
	"myelin/internal/table"
)

// detoursFile has the nodes that are reached by RotationDevice: an agent that starts leads packets by the device that
// they take already, until it knows the sessions. By the other one they would be lost.
const detoursFile = "detours.json"

// openDetours fills the table as the agent before has left it.
func (e *Encryption) openDetours() (err error) {
	if e.detours, err = durable.OpenMap[string](filepath.Join(Dir(e.params.RunDir), detoursFile)); err != nil {
		return fmt.Errorf("read which nodes are reached by %s: %w", RotationDevice, err)
	}
	var list []*cluster.Detour
	for node, device := range e.detours.All() {
		list = append(list, &cluster.Detour{Node: node, Device: device})
	}
	return e.writeDetours(list)
}

// writeDetours writes the file, and then the table.
func (e *Encryption) writeDetours(list []*cluster.Detour) error {
	next := map[string]string{}
	for _, d := range list {
		next[d.Node] = d.Device
	}
	err := e.detours.Change(func(have map[string]string) bool {
		same := maps.Equal(have, next)
		clear(have)
		maps.Copy(have, next)
		return !same
	})
	if err != nil {
		return fmt.Errorf("write which nodes are reached by %s: %w", RotationDevice, err)
	}
	txn := e.params.DB.WriteTxn(e.params.Detours)
	defer txn.Abort()
	all := e.params.Detours.All(txn)
	if _, err := table.Replace(txn, e.params.Detours, all, list, (*cluster.Detour).Equal); err != nil {
		return fmt.Errorf("write detours: %w", err)
	}
	txn.Commit()
	return nil
}
