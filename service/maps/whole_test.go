package maps

import (
	"maps"
	"reflect"
	"testing"

	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/service"
)

// uses are the backends that Services have or had before, by their numbers.
func (r *rig) uses() map[[2]uint32]bool {
	out := map[[2]uint32]bool{}
	for _, txn := range []statedb.ReadTxn{r.seen, r.DB.ReadTxn()} {
		for b := range r.Desired.Backends.All(txn) {
			for _, u := range b.Uses {
				if s, _, ok := r.Desired.Services.Get(txn, service.ByKey(u.Service)); ok {
					out[[2]uint32{s.ID, b.ID}] = true
				}
			}
		}
	}
	return out
}

// whole reports incomplete states that a packet could find: backend slots of a frontend without a row, without a
// backend, or of another Service, and frontends of an address whose row lacks their scope.
func (r *rig) whole(t testing.TB) {
	t.Helper()
	r.countersOf(t)
	uses := r.uses()
	known, addresses := map[uint32]bool{}, map[bpf.DatapathAddr]uint32{}
	each(t, r.datapath.Frontends, func(key *bpf.DatapathFrontendKey, f *bpf.DatapathFrontend) {
		if isAddress(key) {
			addresses[key.Addr] = f.Flags
		}
	})
	each(t, r.datapath.Backends, func(id *uint32, _ *bpf.DatapathBackend) { known[*id] = true })
	each(t, r.datapath.Frontends, func(key *bpf.DatapathFrontendKey, f *bpf.DatapathFrontend) {
		if missing := f.Flags & (internalFlag | externalFlag) &^ addresses[key.Addr]; missing != 0 {
			t.Errorf("%s: the address lacks flags %#x", frontendL4(*key), missing)
		}
		if f.Flags&rangesFlag != 0 {
			r.guarded(t, f.Service)
		}
		for _, set := range f.Set {
			ids, err := r.read(set)
			if err != nil || len(ids) != int(set.Count) {
				t.Errorf("%s: set %d has %d of %d choices: %v", frontendL4(*key), set.Id, len(ids), set.Count, err)
			}
			for _, id := range ids {
				if !known[id] {
					t.Errorf("%s: set %d names backend %d, which isn't there", frontendL4(*key), set.Id, id)
				}
				if !uses[[2]uint32{f.Service, id}] {
					t.Errorf("%s: set %d names backend %d, which isn't service %d's", frontendL4(*key), set.Id, id,
						f.Service)
				}
			}
		}
	})
}

// guarded reports source ranges in the kernel that are in neither the previous nor the current tables, and ranges that
// are missing although they are in both. A frontend that has become restricted may deny everything.
func (r *rig) guarded(t testing.TB, serviceID uint32) {
	t.Helper()
	has, err := r.readRanges()
	if err != nil {
		t.Fatal(err)
	}
	before := rangesWanted(r.Desired, r.seen)[serviceID]
	after, isThere := rangesWanted(r.Desired, r.DB.ReadTxn())[serviceID]
	for key := range has[serviceID] {
		if !before[key] && !after[key] {
			t.Errorf("%s: not wanted", rangeText(key))
		}
	}
	for _, wanted := range []rangeKeys{before, after} {
		for key := range wanted {
			if before[key] && (after[key] || !isThere) && !has[serviceID][key] {
				t.Errorf("%s: is missing", rangeText(key))
			}
		}
	}
}

// counted fails the test if the rig's reference counts are not those of the maps.
func (r *rig) counted(t testing.TB) {
	t.Helper()
	other, err := New(Params{Log: r.log, DB: r.db, Tables: r.tables, Datapath: r.datapath})
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(other.refs, r.refs) {
		t.Errorf("references are counted wrong: got %v, want %v", r.refs, other.refs)
	}
	if !reflect.DeepEqual(other.tally, r.tally) {
		t.Errorf("frontends are counted wrong: got %+v, want %+v", r.tally, other.tally)
	}
	if !maps.Equal(other.counters, r.counters) {
		t.Errorf("counters are remembered wrong: got %+v, want %+v", r.counters, other.counters)
	}
	if !reflect.DeepEqual(other.ranges, r.ranges) {
		t.Errorf("ranges are remembered wrong: got %+v, want %+v", r.ranges, other.ranges)
	}
}
