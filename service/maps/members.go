package maps

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/service"
	"myelin/service/stats"
)

// memberKeys are the entries of a Service in the map of members, with their values: backends that have counters of
// their own, and those to which the DSR option may name the Service.
type memberKeys map[bpf.DatapathMemberKey]uint32

// memberRevisions are those of the tables that the members of a Service were written from. Frontends of one Service
// change together: its members are computed once for all of them.
type memberRevisions struct{ frontends, backends statedb.Revision }

// member is a backend of a Service, and whether external clients may get it by DSR.
type member struct {
	backend  *service.Backend
	external bool
}

// memberKey is the key of a backend of the Service with the number.
func memberKey(b *service.Backend, id uint32) bpf.DatapathMemberKey {
	row := backendRow(b)
	return bpf.DatapathMemberKey{Addr: row.Addr, Service: id, Port: row.Port, Proto: row.Proto}
}

// membersOf are the backends of all frontends of a Service, from the tables.
func (k *Kernel) membersOf(txn statedb.ReadTxn, name cluster.Key, id uint32) map[bpf.DatapathMemberKey]member {
	trusted := map[uint32]bool{} // by number of the backend
	for f := range k.tables.Frontends.List(txn, service.FrontendsByService(name)) {
		if f.ServiceID != id {
			continue // of a Service that has taken its name
		}
		for _, ref := range f.Internal {
			trusted[ref.ID] = trusted[ref.ID]
		}
		for _, ref := range f.External {
			trusted[ref.ID] = k.direct
		}
		for _, s := range f.Servers { // in any state: flows of established connections move to them
			trusted[s.Backend] = trusted[s.Backend] || k.direct && f.Scopes&service.External != 0
		}
	}
	out := make(map[bpf.DatapathMemberKey]member, len(trusted))
	for backend, external := range trusted {
		if b, _, ok := k.tables.Backends.Get(txn, service.BackendByID(backend)); ok {
			out[memberKey(b, id)] = member{b, external}
		}
	}
	return out
}

// keepUsed adds to the members of a Service those backends with counters that get no new flows any more, but may have
// some: backends that terminate, for example. The frontends do not change when the Service loses these, tendStats looks
// again.
func (k *Kernel) keepUsed(
	txn statedb.ReadTxn, name cluster.Key, id uint32, want map[bpf.DatapathMemberKey]member,
) {
	delete(k.lingering, id)
	if f, _, ok := k.tables.Frontends.Get(txn, service.FrontendsByService(name)); !ok || f.ServiceID != id {
		return // the Service has no frontend, or is another one of that name
	}
	for key, value := range k.members[id] {
		if _, wanted := want[key]; wanted || bpf.MemberStat(value) == 0 {
			continue
		}
		b := k.backendOf(txn, key)
		if b != nil && slices.ContainsFunc(b.Uses, func(u service.Use) bool { return u.Service == name }) {
			want[key], k.lingering[id] = member{backend: b}, name
		}
	}
}

// backendOf is the backend of a member in the table, nil if it is gone.
func (k *Kernel) backendOf(txn statedb.ReadTxn, key bpf.DatapathMemberKey) *service.Backend {
	at := service.L4(key.Addr.Netip(), bpf.Port(key.Port), service.Protocol(key.Proto))
	b, _, _ := k.tables.Backends.Get(txn, service.BackendByAddress(at))
	return b
}

// writeMembers makes the members of a Service in the kernel equal to those in the tables.
func (k *Kernel) writeMembers(txn statedb.ReadTxn, name cluster.Key, id uint32) error {
	if k.datapath.Members.MaxEntries() <= 1 {
		return nil
	}
	at := memberRevisions{k.tables.Frontends.Revision(txn), k.tables.Backends.Revision(txn)}
	if k.membersAt[id] == at {
		return nil
	}
	delete(k.membersAt, id)
	want := k.membersOf(txn, name, id)
	k.keepUsed(txn, name, id, want)
	for key, m := range want {
		stat := k.stats.Take(key)
		value := bpf.MemberValue(stat, m.external)
		if value == 0 {
			delete(want, key)
			continue
		}
		err := k.writeMember(key, value)
		if named := k.counters[m.backend.ID]; err == nil && (named.Index == 0 || named.Service == id) {
			err = k.writeCounters(m.backend, bpf.CountersOf(id, stat))
		}
		if err != nil {
			return fmt.Errorf("write members of %s: %w", name, err)
		}
	}
	err := k.deleteMembers(id, want)
	if err == nil && len(want) > 0 {
		k.membersAt[id] = at
	}
	return err
}

func (k *Kernel) writeMember(key bpf.DatapathMemberKey, value uint32) error {
	last, had := k.members[key.Service][key]
	if had && last == value {
		return nil
	}
	if err := putRow(k, k.datapath.Members, key, value); err != nil {
		if !had {
			k.stats.Release(key, time.Now())
		}
		return err
	}
	k.noteMember(key, value)
	return nil
}

func (k *Kernel) noteMember(key bpf.DatapathMemberKey, value uint32) {
	if k.members[key.Service] == nil {
		k.members[key.Service] = memberKeys{}
	}
	k.members[key.Service][key] = value
}

func (k *Kernel) deleteMembers(id uint32, keep map[bpf.DatapathMemberKey]member) error {
	txn := k.db.ReadTxn()
	for key := range k.members[id] {
		if _, wanted := keep[key]; wanted {
			continue
		}
		err := k.releaseCounters(txn, key)
		if err == nil {
			err = deleteRow(k, k.datapath.Members, key)
		}
		if err != nil {
			return fmt.Errorf("delete members of service %d: %w", id, err)
		}
		delete(k.members[id], key)
		k.stats.Release(key, time.Now())
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
			delete(k.lingering, id)
			delete(k.membersAt, id)
			errs = append(errs, k.deleteMembers(id, nil))
		}
	}
	return errors.Join(errs...)
}

// readMembers reads the members that the previous agent wrote, and what they have counted.
func (k *Kernel) readMembers() error {
	indexes := map[stats.Pair]uint32{}
	err := bpf.Each(k.datapath.Members, func(key *bpf.DatapathMemberKey, value *uint32) bool {
		k.noteMember(*key, *value)
		if i := bpf.MemberStat(*value); i != 0 {
			indexes[*key] = i
		}
		return true
	})
	if err == nil {
		err = bpf.Each(k.datapath.Backends, func(id *uint32, b *bpf.DatapathBackend) bool {
			k.noteCounters(*id, b.Counters())
			return true
		})
	}
	if err == nil {
		k.stats, err = stats.New(k.datapath, indexes, time.Now())
	}
	if err != nil {
		return fmt.Errorf("read members: %w", err)
	}
	return nil
}

// releaseCounters has the row of a member that is to be deleted name the counters of another Service of the backend, if
// it has one. The row of a backend that is gone goes, too.
func (k *Kernel) releaseCounters(txn statedb.ReadTxn, key bpf.DatapathMemberKey) error {
	b := k.backendOf(txn, key)
	if b == nil || k.counters[b.ID].Service != key.Service {
		return nil
	}
	return k.writeCounters(b, k.countersFor(txn, b, key.Service))
}

// countersFor are counters that the row of a backend can name: those of one of its Services but the given one.
func (k *Kernel) countersFor(txn statedb.ReadTxn, b *service.Backend, except uint32) bpf.BackendStat {
	for _, u := range b.Uses {
		s, _, ok := k.tables.Services.Get(txn, service.ByKey(u.Service))
		if !ok || s.ID == except {
			continue
		}
		if c := bpf.CountersOf(s.ID, bpf.MemberStat(k.members[s.ID][memberKey(b, s.ID)])); c.Index != 0 {
			return c
		}
	}
	return bpf.BackendStat{}
}

// writeCounters has the row of a backend, if there is one, name the counters, so that flows need not look for them in
// members.
func (k *Kernel) writeCounters(b *service.Backend, want bpf.BackendStat) error {
	if k.counters[b.ID] == want {
		return nil
	}
	var row bpf.DatapathBackend
	had, err := bpf.Get(k.datapath.Backends, b.ID, &row)
	if had && err == nil {
		row.SetCounters(want)
		err = k.putBackend(b.ID, row)
	}
	if err != nil {
		return fmt.Errorf("write counters of backend %d (%s): %w", b.ID, b.L4(), err)
	}
	return nil
}

func (k *Kernel) noteCounters(backend uint32, s bpf.BackendStat) {
	if s.Index == 0 {
		delete(k.counters, backend)
		return
	}
	k.counters[backend] = s
}
