package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/table"
)

const (
	external = bpf.DatapathServiceScopeSCOPE_EXTERNAL
	internal = bpf.DatapathServiceScopeSCOPE_INTERNAL
)

// Kernel is what Services are to the datapath. The maps themselves are the
// memory of what was written: a change is made to what is found there, be it
// from us or from an agent before us.
type Kernel struct {
	// Maglev must be set before Reconcile.
	Maglev MaglevConfig

	datapath *bpf.Datapath
	log      *slog.Logger
	db       *statedb.DB
	tables   Tables

	mu       sync.Mutex
	nextSet  uint32
	refs     map[uint32]uint32 // how many choices of frontends name a backend
	tally    tally
	ranges   map[uint32]rangeKeys // source ranges by Service
	members  map[uint32]memberKeys
	memberOf map[bpf.DatapathFrontendKey]frontendService
	own      map[bpf.DatapathAddr]bool // the node's addresses; nil: not known, and any may be
	left     map[departure]bool
	wake     chan struct{} // something left
	gone     chan struct{} // a backend of UDP has no row any more

	flows    chan struct{} // somebody wants a walk over all flows
	strays   bool          // … for backends have gone
	counting bool          // loads are in the kernel

	before func(op string) error // of a test: called before each write to a map, which its error prevents
}

// NewKernel makes a Kernel of loaded maps.
func NewKernel(d *bpf.Datapath) *Kernel {
	return &Kernel{
		datapath: d, refs: map[uint32]uint32{}, tally: newTally(PortRange{}), ranges: map[uint32]rangeKeys{}, members: map[uint32]memberKeys{}, memberOf: map[bpf.DatapathFrontendKey]frontendService{}, left: map[departure]bool{},
		wake: make(chan struct{}, 1), gone: make(chan struct{}, 1), flows: make(chan struct{}, 1),
	}
}

// FrontendStatus and BackendStatus are where the reconcilers write how it went.
func FrontendStatus(f *Frontend) *reconciler.Status { return &f.Status }

// BackendStatus is FrontendStatus of a backend.
func BackendStatus(b *Backend) *reconciler.Status { return &b.Status }

// Reconcile makes the kernel equal to the tables of frontends and backends, as
// soon as both are initialized: until then a set may lack backends only because
// nobody has read them yet, and what an agent before us wrote is the better
// answer. Errors are those of reading the maps.
func Reconcile(log *slog.Logger, db *statedb.DB, group job.Group, tables Tables, k *Kernel) error {
	if err := k.adopt(log, db, tables); err != nil {
		return err
	}
	group.Add(
		job.OneShot("services-known", func(ctx context.Context, _ cell.Health) error {
			if !k.known(ctx) {
				return nil
			}
			_, err1 := table.Register(log, db, group, tables.Backends, BackendStatus, &backendOps{k})
			_, err2 := table.Register(log, db, group, tables.Frontends, FrontendStatus, &frontendOps{k})
			return errors.Join(err1, err2)
		}),
		job.OneShot("affinities", func(ctx context.Context, _ cell.Health) error { return k.forget(ctx) }),
		job.OneShot("flows-of-services", func(ctx context.Context, _ cell.Health) error { return k.attend(ctx) }),
	)
	return nil
}

// adopt reads what is in the maps.
func (k *Kernel) adopt(log *slog.Logger, db *statedb.DB, tables Tables) error {
	k.log, k.db, k.tables = log, db, tables
	settings, err := k.datapath.Settings()
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tally.nodePorts = PortRange{settings.NodePortMin, settings.NodePortMax}
	if _, err := k.scan(); err != nil {
		return fmt.Errorf("read what Services the kernel has: %w", err)
	}
	return errors.Join(k.readMembers(), k.judgeOwn())
}

// known waits until the tables are initialized, or reports that ctx ended.
func (k *Kernel) known(ctx context.Context) bool {
	for _, t := range []statedb.TableMeta{k.tables.Frontends, k.tables.Backends} {
		if ok, wait := t.Initialized(k.db.ReadTxn()); !ok {
			select {
			case <-wait:
			case <-ctx.Done():
				return false
			}
		}
	}
	return true
}

func frontendKey(a L4Addr) bpf.DatapathFrontendKey {
	return bpf.DatapathFrontendKey{Addr: bpf.Addr(a.Addr()), Port: bpf.Port(a.Port()), Proto: uint8(a.Protocol)}
}

// frontendL4 is the inverse of frontendKey.
func frontendL4(key bpf.DatapathFrontendKey) L4Addr {
	addr := key.Addr.Netip()
	if !addr.IsValid() {
		addr = anyAddress(true)
	}
	return L4(addr, bpf.Port(key.Port), Protocol(key.Proto))
}

// frontendRow is the row of a frontend but for its sets.
func frontendRow(f *Frontend) bpf.DatapathFrontend {
	row := bpf.DatapathFrontend{
		Service: f.ServiceID, Affinity: uint32((f.Affinity + time.Second - 1) / time.Second), Port: portNumber(f),
	}
	dsr := f.Forwarding == DSR || f.Forwarding == Hybrid && f.Protocol == TCP
	for _, flag := range []struct {
		on   bool
		flag bpf.DatapathFrontendFlag
	}{
		{f.Scopes&External != 0, bpf.DatapathFrontendFlagFRONTEND_EXTERNAL},
		{f.Scopes&Internal != 0, bpf.DatapathFrontendFlagFRONTEND_INTERNAL},
		{f.Elsewhere&External != 0, bpf.DatapathFrontendFlagFRONTEND_DROP_EXTERNAL},
		{f.Elsewhere&Internal != 0, bpf.DatapathFrontendFlagFRONTEND_DROP_INTERNAL},
		{f.ThisNode, bpf.DatapathFrontendFlagFRONTEND_THIS_NODE},
		{f.Restricted && f.Scopes&External != 0, bpf.DatapathFrontendFlagFRONTEND_RANGES},
		{f.Algorithm == Maglev && f.Scopes&External != 0, bpf.DatapathFrontendFlagFRONTEND_MAGLEV},
		{f.Algorithm == LeastConnections, bpf.DatapathFrontendFlagFRONTEND_LEAST},
		{dsr, bpf.DatapathFrontendFlagFRONTEND_DSR},
		{!dsr && f.Forwarding != DefaultForwarding, bpf.DatapathFrontendFlagFRONTEND_SNAT},
	} {
		if flag.on {
			row.Flags |= uint32(flag.flag)
		}
	}
	return row
}

func backendRow(b *Backend) bpf.DatapathBackend {
	return bpf.DatapathBackend{Addr: bpf.Addr(b.Address.Addr()), Port: bpf.Port(b.Address.Port()), Proto: uint8(b.Protocol)}
}

func (k *Kernel) mapName(m *ebpf.Map) string {
	switch m {
	case k.datapath.Frontends:
		return "frontends"
	case k.datapath.BackendSlots:
		return "backend_slots"
	case k.datapath.MaglevTables:
		return "maglev_tables"
	case k.datapath.Backends:
		return "backends"
	case k.datapath.Loads:
		return "loads"
	case k.datapath.NatEntries:
		return "nat_entries"
	case k.datapath.SourceRanges:
		return "source_ranges"
	case k.datapath.Members:
		return "members"
	}
	return "affinities"
}

// put writes a row.
func put[K, V any](k *Kernel, m *ebpf.Map, key K, value V) error {
	if k.before != nil {
		if err := k.before("put " + k.mapName(m)); err != nil {
			return err
		}
	}
	err := m.Put(key, value)
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) { // tries say the latter
		return fmt.Errorf("map %s is full: it has room for %d rows", k.mapName(m), m.MaxEntries())
	}
	return err
}

// drop deletes a row if it is there.
func drop[K any](k *Kernel, m *ebpf.Map, key K) error {
	if k.before != nil {
		if err := k.before("delete " + k.mapName(m)); err != nil {
			return err
		}
	}
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// newSet is a number that no set in the kernel has; kind is 0 or tableFlag. A
// set has a first row.
func (k *Kernel) newSet(kind uint32) (uint32, error) {
	for {
		id := max(k.nextSet&^tableFlag, 1) // after 2^31 the numbers begin again
		k.nextSet = id + 1
		id |= kind
		m, row, _ := k.rowOf(id)
		used, err := bpf.Get(m, bpf.DatapathBackendSlotsKey{Set: id}, row)
		if err != nil {
			return 0, fmt.Errorf("look for a free set: %w", err)
		}
		if !used {
			return id, nil
		}
	}
}

// setIDs are the numbers of a frontend's sets: those that they had where that
// can be, one for both where they are the same. A frontend that another Service
// takes over gets new ones, so that it changes at one stroke. table, if not 0,
// is the external set.
func (k *Kernel) setIDs(old *bpf.DatapathFrontend, service, table uint32, lists [2][]BackendRef) (ids [2]uint32, err error) {
	var had [2]uint32
	for scope, set := range old.Set {
		if old.Service == service && !isTable(set.Id) {
			had[scope] = set.Id
		}
	}
	same := sameRefs(lists[external], lists[internal])
	if len(lists[internal]) > 0 {
		ids[internal] = had[internal]
		if same {
			ids[internal] = cmp.Or(table, had[internal], had[external])
		}
		if ids[internal] == 0 {
			if ids[internal], err = k.newSet(0); err != nil {
				return ids, err
			}
		}
	}
	switch {
	case len(lists[external]) == 0:
	case table != 0:
		ids[external] = table
	case same:
		ids[external] = ids[internal]
	case had[external] != 0 && had[external] != ids[internal]:
		ids[external] = had[external]
	default:
		ids[external], err = k.newSet(0)
	}
	return ids, err
}

// portNumber tells the ports of one Service apart, by what they are called.
func portNumber(f *Frontend) uint32 {
	h := fnv.New32a()
	h.Write(append([]byte(f.PortName), byte(f.Protocol)))
	return h.Sum32()
}

// LastNumbers are the largest numbers of Services and backends that the kernel
// has from an agent before us.
func LastNumbers(d *bpf.Datapath) (service, backend uint32, err error) {
	err = bpf.Each(d.Frontends, func(_ *bpf.DatapathFrontendKey, f *bpf.DatapathFrontend) bool {
		service = max(service, f.Service)
		return true
	})
	if err == nil {
		err = bpf.Each(d.Backends, func(id *uint32, _ *bpf.DatapathBackend) bool {
			backend = max(backend, *id)
			return true
		})
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read numbers of Services: %w", err)
	}
	return service, backend, nil
}

// HeldAddresses are the frontends that the kernel has from an agent before us,
// with the numbers of their Services.
func HeldAddresses(d *bpf.Datapath) (map[L4Addr]uint32, error) {
	held := map[L4Addr]uint32{}
	err := bpf.Each(d.Frontends, func(key *bpf.DatapathFrontendKey, f *bpf.DatapathFrontend) bool {
		if !isAddress(key) {
			held[frontendL4(*key)] = f.Service
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("read which Services the kernel has: %w", err)
	}
	return held, nil
}
