package maps

import (
	"errors"
	"fmt"

	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/service"
)

// memberKeys are the rows of a Service in the map of members: the backends to which the DSR option may name the
// Service.
type memberKeys map[bpf.DatapathMemberKey]bool

// membersOf are the backends of all frontends of a Service, from the tables.
func (k *Kernel) membersOf(txn statedb.ReadTxn, name cluster.Key) memberKeys {
	out := memberKeys{}
	for f := range k.tables.Frontends.List(txn, service.FrontendsByService(name)) {
		for _, ref := range f.External {
			if b, _, ok := k.tables.Backends.Get(txn, service.BackendByID(ref.ID)); ok {
				row := backendRow(b)
				out[bpf.DatapathMemberKey{Addr: row.Addr, Service: f.ServiceID, Port: row.Port,
					Proto: row.Proto}] = true
			}
		}
	}
	return out
}

// frontendService is the Service that a frontend belonged to when its members were last written.
type frontendService struct {
	name cluster.Key
	id   uint32
}

// updateMembers writes the members of a frontend's Service, and of the Service that the frontend belonged to before.
func (k *Kernel) updateMembers(txn statedb.ReadTxn, f *service.Frontend) error {
	if k.datapath.Members.MaxEntries() <= 1 {
		return nil
	}
	key, now := frontendKey(f.L4()), frontendService{f.Service, f.ServiceID}
	last, had := k.memberOf[key]
	k.memberOf[key] = now
	err := k.writeMembers(txn, now.name, now.id)
	if had && last != now {
		err = errors.Join(err, k.writeMembers(txn, last.name, last.id))
	}
	return err
}

// writeMembers makes the members of a Service in the kernel equal to those in the tables, if DSR is possible.
func (k *Kernel) writeMembers(txn statedb.ReadTxn, name cluster.Key, id uint32) error {
	if k.datapath.Members.MaxEntries() <= 1 {
		return nil
	}
	want := k.membersOf(txn, name)
	for key := range want {
		if k.members[id][key] {
			continue
		}
		if err := putRow(k, k.datapath.Members, key, uint32(1)); err != nil {
			return fmt.Errorf("write members of %s: %w", name, err)
		}
		if k.members[id] == nil {
			k.members[id] = memberKeys{}
		}
		k.members[id][key] = true
	}
	return k.deleteMembers(id, want)
}

func (k *Kernel) deleteMembers(id uint32, keep memberKeys) error {
	for key := range k.members[id] {
		if keep[key] {
			continue
		}
		if err := deleteRow(k, k.datapath.Members, key); err != nil {
			return fmt.Errorf("delete members of service %d: %w", id, err)
		}
		delete(k.members[id], key)
	}
	if len(k.members[id]) == 0 {
		delete(k.members, id)
	}
	return nil
}

// pruneMembers deletes the members of Services without a frontend.
func (k *Kernel) pruneMembers(services map[uint32]bool) error {
	var errs []error
	for id := range k.members {
		if !services[id] {
			errs = append(errs, k.deleteMembers(id, nil))
		}
	}
	return errors.Join(errs...)
}

// readMembers reads the members that the previous agent wrote.
func (k *Kernel) readMembers() error {
	err := bpf.Each(k.datapath.Members, func(key *bpf.DatapathMemberKey, _ *uint32) bool {
		if k.members[key.Service] == nil {
			k.members[key.Service] = memberKeys{}
		}
		k.members[key.Service][*key] = true
		return true
	})
	if err != nil {
		return fmt.Errorf("read members: %w", err)
	}
	return nil
}
