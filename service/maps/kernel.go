// Package maps writes the frontends and backends of Services to the maps of the datapath: backend slots and Maglev
// tables, addresses, source ranges, affinities, and what depends on a backend that is gone.
package maps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/bits"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/internal/table"
	"myelin/service"
	"myelin/service/maglev"
	"myelin/service/stats"
)

const (
	external = bpf.DatapathServiceScopeSCOPE_EXTERNAL
	internal = bpf.DatapathServiceScopeSCOPE_INTERNAL
)

// Params are what a Kernel needs.
type Params struct {
	Log      *slog.Logger
	DB       *statedb.DB
	Tables   service.Tables
	Datapath *bpf.Datapath
	Maglev   maglev.Config
}

// Kernel writes frontends and backends to the maps of the datapath. The maps themselves record what was written: each
// change is computed from what they contain, be it from this agent or from the previous one.
type Kernel struct {
	log      *slog.Logger
	db       *statedb.DB
	tables   service.Tables
	datapath *bpf.Datapath
	maglev   maglev.Config
	direct   bool // a DSR option may name a Service
	stats    *stats.Stats

	mu      sync.Mutex
	nextSet uint32
	refs    map[uint32]uint32 // how many backend slots name a backend
	tally   tally
	ranges  map[uint32]rangeKeys // source ranges by Service
	members map[uint32]memberKeys
	// counters are those that the rows of backends name, by number of the backend.
	counters map[uint32]bpf.BackendStat
	// membersAt are the revisions that the members of a Service are from, lingering Services with members that get no
	// new flows.
	membersAt map[uint32]memberRevisions
	lingering map[uint32]cluster.Key
	servers   *serviceRows[bpf.DatapathQuicServerKey, uint32] // backends by server ID
	serviceOf map[bpf.DatapathFrontendKey]frontendService
	own       map[bpf.DatapathAddr]bool // the node's addresses; nil: unknown, any address may be one
	removals  map[removal]bool          // backends whose affinities are to be deleted

	affinityWake   chan struct{} // removals has a new entry
	udpBackendGone chan struct{} // the row of a UDP backend was deleted
	flowScanWake   chan struct{} // a flow scan was requested
	backendsGone   bool          // the next flow scan ends flows without a backend
	countsLoads    bool          // the map of loads is in use

	before func(op string) error // test hook: called before each write to a map, which its error prevents
}

// New returns a Kernel that has read what the maps contain. Its errors are those of reading them.
func New(p Params) (*Kernel, error) {
	settings, err := p.Datapath.Settings()
	if err != nil {
		return nil, err
	}
	k := &Kernel{
		log: p.Log, db: p.DB, tables: p.Tables, datapath: p.Datapath, maglev: p.Maglev,
		refs: map[uint32]uint32{}, ranges: map[uint32]rangeKeys{}, removals: map[removal]bool{},
		direct: settings.Direct != 0, lingering: map[uint32]cluster.Key{}, membersAt: map[uint32]memberRevisions{},
		tally:   newTally(service.PortRange{First: settings.NodePortMin, Last: settings.NodePortMax}),
		members: map[uint32]memberKeys{}, counters: map[uint32]bpf.BackendStat{},
		serviceOf:    map[bpf.DatapathFrontendKey]frontendService{},
		affinityWake: make(chan struct{}, 1), udpBackendGone: make(chan struct{}, 1),
		flowScanWake: make(chan struct{}, 1),
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, err := k.scan(); err != nil {
		return nil, fmt.Errorf("read the Services of the previous agent: %w", err)
	}
	if err := errors.Join(k.readAllServiceRows(), k.updateOwnPorts()); err != nil {
		return nil, err
	}
	return k, nil
}

// Reconcile makes the maps equal to the tables of frontends and backends, as soon as both are initialized. Until then
// a set may lack backends only because they have not been read yet, and what the previous agent wrote is better.
func (k *Kernel) Reconcile(group job.Group) {
	group.Add(
		job.OneShot("services-known", func(ctx context.Context, _ cell.Health) error {
			if !k.WaitInitialized(ctx) {
				return nil
			}
			frontends, backends := k.Operations()
			_, err1 := table.Register(k.log, k.db, group, k.tables.Backends, service.BackendStatus, backends)
			_, err2 := table.Register(k.log, k.db, group, k.tables.Frontends, service.FrontendStatus, frontends)
			return errors.Join(err1, err2)
		}),
		job.OneShot("affinities", func(ctx context.Context, _ cell.Health) error { return k.runAffinityCleanup(ctx) }),
		job.OneShot("stats-of-services", func(ctx context.Context, _ cell.Health) error { return k.runStats(ctx) }),
		job.OneShot("flows-of-services", func(ctx context.Context, _ cell.Health) error { return k.runFlowScans(ctx) }),
	)
}

// Operations are what the reconcilers of both tables do.
func (k *Kernel) Operations() (
	frontends reconciler.Operations[*service.Frontend], backends reconciler.Operations[*service.Backend],
) {
	return &frontendOps{k}, &backendOps{k}
}

// UDPBackendGone receives after the row of a UDP backend was deleted, once for all since it received last.
func (k *Kernel) UDPBackendGone() <-chan struct{} { return k.udpBackendGone }

// WaitInitialized waits until the tables are initialized. It returns false if ctx ends before.
func (k *Kernel) WaitInitialized(ctx context.Context) bool {
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

func frontendKey(a service.L4Addr) bpf.DatapathFrontendKey {
	return bpf.DatapathFrontendKey{Addr: bpf.Addr(a.Addr()), Port: bpf.Port(a.Port()), Proto: uint8(a.Protocol)}
}

// frontendL4 is the inverse of frontendKey.
func frontendL4(key bpf.DatapathFrontendKey) service.L4Addr {
	addr := key.Addr.Netip()
	if !addr.IsValid() {
		addr = service.AnyAddress(true)
	}
	return service.L4(addr, bpf.Port(key.Port), service.Protocol(key.Proto))
}

// frontendRow is the row of a frontend without its sets.
func frontendRow(f *service.Frontend) bpf.DatapathFrontend {
	row := bpf.DatapathFrontend{
		Service: f.ServiceID, Affinity: uint32((f.Affinity + time.Second - 1) / time.Second), Port: portNumber(f),
	}
	byID := f.ServerIDLength > 0
	dsr := f.Forwarding == service.DSR || f.Forwarding == service.Hybrid && f.Protocol == service.TCP
	for _, flag := range []struct {
		on   bool
		flag bpf.DatapathFrontendFlag
	}{
		{f.Scopes&service.External != 0, bpf.DatapathFrontendFlagFRONTEND_EXTERNAL},
		{f.Scopes&service.Internal != 0, bpf.DatapathFrontendFlagFRONTEND_INTERNAL},
		{f.Elsewhere&service.External != 0, bpf.DatapathFrontendFlagFRONTEND_DROP_EXTERNAL},
		{f.Elsewhere&service.Internal != 0, bpf.DatapathFrontendFlagFRONTEND_DROP_INTERNAL},
		{f.ThisNode, bpf.DatapathFrontendFlagFRONTEND_THIS_NODE},
		{f.Restricted && f.Scopes&service.External != 0, bpf.DatapathFrontendFlagFRONTEND_RANGES},
		{f.Algorithm == service.Maglev && f.Scopes&service.External != 0, bpf.DatapathFrontendFlagFRONTEND_MAGLEV},
		{f.Algorithm == service.LeastConnections, bpf.DatapathFrontendFlagFRONTEND_LEAST},
		{dsr, bpf.DatapathFrontendFlagFRONTEND_DSR},
		{byID && f.Local&service.External != 0, bpf.DatapathFrontendFlagFRONTEND_LOCAL_EXTERNAL},
		{byID && f.Local&service.Internal != 0, bpf.DatapathFrontendFlagFRONTEND_LOCAL_INTERNAL},
		{!dsr && f.Forwarding != service.DefaultForwarding, bpf.DatapathFrontendFlagFRONTEND_SNAT},
	} {
		if flag.on {
			row.Flags |= uint32(flag.flag)
		}
	}
	row.Flags |= uint32(f.ServerIDLength) << bits.TrailingZeros32(uint32(bpf.DatapathFrontendFlagFRONTEND_QUIC))
	return row
}

func backendRow(b *service.Backend) bpf.DatapathBackend {
	return bpf.DatapathBackend{
		Addr: bpf.Addr(b.Address.Addr()), Port: bpf.Port(b.Address.Port()), Proto: uint8(b.Protocol),
	}
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
	case k.datapath.QuicServers:
		return "quic_servers"
	}
	return "affinities"
}

// putRow writes a row. Its error says if the map is full.
func putRow[K, V any](k *Kernel, m *ebpf.Map, key K, value V) error {
	if k.before != nil {
		if err := k.before("put " + k.mapName(m)); err != nil {
			return err
		}
	}
	err := m.Put(key, value)
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) { // the latter from LPM tries
		k.datapath.Refused(k.mapName(m), 1)
		return fmt.Errorf("map %s is full: it has room for %d rows", k.mapName(m), m.MaxEntries())
	}
	return err
}

// deleteRow deletes a row if it exists.
func deleteRow[K any](k *Kernel, m *ebpf.Map, key K) error {
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

// newSet returns a number that no set in the kernel has, which is seen by its first row. kind is 0 or tableFlag.
func (k *Kernel) newSet(kind uint32) (uint32, error) {
	for {
		id := max(k.nextSet&^tableFlag, 1) // numbers start again after 2^31
		k.nextSet = id + 1
		id |= kind
		m, row, _ := k.rowOf(id)
		used, err := bpf.Get(m, bpf.DatapathBackendSlotsKey{Set: id}, row)
		if err != nil {
			return 0, fmt.Errorf("find a free set number: %w", err)
		}
		if !used {
			return id, nil
		}
	}
}

// setIDs returns the numbers of a frontend's sets. They keep their numbers if possible, and are one set if they are the
// same. A frontend that now belongs to another Service gets new ones, so that it changes atomically. table, if not 0,
// is the external set.
func (k *Kernel) setIDs(
	old *bpf.DatapathFrontend, serviceID, table uint32, lists [2][]service.BackendRef,
) (ids [2]uint32, err error) {
	var had [2]uint32
	for scope, set := range old.Set {
		if old.Service == serviceID && !isTable(set.Id) {
			had[scope] = set.Id
		}
	}
	same := service.SameRefs(lists[external], lists[internal])
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

// portNumber distinguishes the ports of a Service by name and protocol.
func portNumber(f *service.Frontend) uint32 {
	h := fnv.New32a()
	h.Write(append([]byte(f.PortName), byte(f.Protocol)))
	return h.Sum32()
}

// LastNumbers are the largest numbers of Services and backends that the previous agent wrote.
func LastNumbers(d *bpf.Datapath) (serviceID, backend uint32, err error) {
	err = bpf.Each(d.Frontends, func(_ *bpf.DatapathFrontendKey, f *bpf.DatapathFrontend) bool {
		serviceID = max(serviceID, f.Service)
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
	return serviceID, backend, nil
}

// HeldAddresses are the frontends that the previous agent wrote, with the numbers of their Services.
func HeldAddresses(d *bpf.Datapath) (map[service.L4Addr]uint32, error) {
	held := map[service.L4Addr]uint32{}
	err := bpf.Each(d.Frontends, func(key *bpf.DatapathFrontendKey, f *bpf.DatapathFrontend) bool {
		if !isAddress(key) {
			held[frontendL4(*key)] = f.Service
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("read the frontends of the previous agent: %w", err)
	}
	return held, nil
}
