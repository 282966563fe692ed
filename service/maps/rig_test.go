package maps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/service"
	"myelin/service/maglev"
	"myelin/service/servicetest"
)

// rig is a cluster as one node sees it, and that node's maps.
type rig struct {
	*servicetest.Cluster
	*Kernel
	seen statedb.ReadTxn // the tables that sync has written
	// backendsFirst is the order in which the two reconcilers run.
	backendsFirst bool
}

func newRig(t testing.TB, config service.Config, sizes map[string]uint32) *rig {
	t.Helper()
	return newRigIn(t, config, sizes, "")
}

// newRigIn is newRig whose numbers are kept in dir.
func newRigIn(t testing.TB, config service.Config, sizes map[string]uint32, dir string) *rig {
	t.Helper()
	r := &rig{Cluster: servicetest.New(t, config, dir)}
	r.seen = r.DB.ReadTxn()
	r.agent(t, bpftest.LoadMaps(t, bpf.Settings{}, sizes))
	return r
}

// testMaglev makes tables of 8 rows.
func testMaglev() maglev.Config { return maglev.Config{Size: 251, Seed: 7} }

// small are sizes of maps that tests can read quickly.
func small() map[string]uint32 {
	return map[string]uint32{"frontends": 256, "backend_slots": 256, "backends": 256, "affinities": 256,
		"source_ranges": 512, "nat_entries": 4096, "loads": 256, "maglev_tables": 64, "service_stats": 256}
}

// agent starts a new agent on the maps as they are.
func (r *rig) agent(t testing.TB, d *bpf.Datapath) {
	t.Helper()
	var err error
	r.Kernel, err = New(Params{
		Log: slog.New(slog.DiscardHandler), DB: r.DB, Tables: r.Desired, Datapath: d, Maglev: testMaglev(),
	})
	if err != nil {
		t.Fatal(err)
	}
}

// sync writes what has changed since the last call. After an error, the next call repeats it.
func (r *rig) sync() error {
	ctx, now := context.Background(), r.DB.ReadTxn()
	f, b := &frontendOps{r.Kernel}, &backendOps{r.Kernel}
	var errs [3]error
	if r.backendsFirst {
		errs[0] = servicetest.Apply(ctx, b, r.seen, now, r.Desired.Backends, (*service.Backend).L4)
	}
	errs[1] = servicetest.Apply(ctx, f, r.seen, now, r.Desired.Frontends, (*service.Frontend).L4)
	if !r.backendsFirst {
		errs[2] = servicetest.Apply(ctx, b, r.seen, now, r.Desired.Backends, (*service.Backend).L4)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	r.seen = now
	return nil
}

// again does everything that the reconcilers do at their start.
func (r *rig) again(t testing.TB) {
	t.Helper()
	ctx, now := context.Background(), r.DB.ReadTxn()
	f, b := &frontendOps{r.Kernel}, &backendOps{r.Kernel}
	var errs []error
	for row, rev := range r.Desired.Backends.All(now) {
		errs = append(errs, b.Update(ctx, now, rev, row))
	}
	errs = append(errs, b.Prune(ctx, now, r.Desired.Backends.All(now)))
	for row, rev := range r.Desired.Frontends.All(now) {
		errs = append(errs, f.Update(ctx, now, rev, row))
	}
	errs = append(errs, f.Prune(ctx, now, r.Desired.Frontends.All(now)))
	r.seen = now
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// maps are the rows in the kernel as text.
func (r *rig) maps(t testing.TB) string {
	t.Helper()
	var lines []string
	each(t, r.datapath.Frontends, func(key *bpf.DatapathFrontendKey, f *bpf.DatapathFrontend) {
		if isAddress(key) {
			lines = append(lines, addressText(frontendL4(*key), f.Flags&internalFlag != 0, f.Flags&externalFlag != 0))
			return
		}
		line := fmt.Sprintf("frontend %s service %d", frontendL4(*key), f.Service)
		if f.Affinity > 0 {
			line += fmt.Sprintf(" affinity %d", f.Affinity)
		}
		if f.Flags&uint32(bpf.DatapathFrontendFlagFRONTEND_THIS_NODE) != 0 {
			line += " this-node"
		}
		for _, o := range options() {
			if f.Flags&uint32(o.flag) != 0 {
				line += " " + o.text
			}
		}
		line += " internal " + r.set(t, f, internal, bpf.DatapathFrontendFlagFRONTEND_INTERNAL,
			bpf.DatapathFrontendFlagFRONTEND_DROP_INTERNAL)
		if f.Set[external].Id != 0 && f.Set[external].Id == f.Set[internal].Id {
			lines = append(lines, line+" external likewise")
			return
		}
		line += " external " + r.set(t, f, external, bpf.DatapathFrontendFlagFRONTEND_EXTERNAL,
			bpf.DatapathFrontendFlagFRONTEND_DROP_EXTERNAL)
		lines = append(lines, line)
	})
	each(t, r.datapath.SourceRanges, func(key *bpf.DatapathSourceRangeKey, _ *uint32) {
		lines = append(lines, rangeText(*key))
	})
	each(t, r.datapath.QuicServers, func(key *bpf.DatapathQuicServerKey, backend *uint32) {
		lines = append(lines, serverText(*key, *backend))
	})
	rows, tables := 0, 0
	each(t, r.datapath.BackendSlots, func(*bpf.DatapathBackendSlotsKey, *bpf.DatapathBackendSlotsRow) { rows++ })
	each(t, r.datapath.MaglevTables, func(*bpf.DatapathBackendSlotsKey, *bpf.DatapathMaglevRow) { tables++ })
	each(t, r.datapath.Backends, func(id *uint32, b *bpf.DatapathBackend) {
		lines = append(lines, fmt.Sprintf("backend %d %s", *id,
			service.L4(b.Addr.Netip(), bpf.Port(b.Port), service.Protocol(b.Proto))))
	})
	return servicetest.Sorted(strings.Join(append(lines, setsText(rows, tables)), "\n"))
}

// setsText is the number of rows that sets take.
func setsText(rows, tables int) string {
	text := fmt.Sprintf("choices in %d rows", rows)
	if tables > 0 {
		text += fmt.Sprintf(", tables in %d", tables)
	}
	return text
}

func (r *rig) set(
	t testing.TB, f *bpf.DatapathFrontend, scope bpf.DatapathServiceScope, here, drop bpf.DatapathFrontendFlag,
) string {
	t.Helper()
	last, err := r.read(f.Set[scope])
	if err != nil || len(last) != int(f.Set[scope].Count) {
		t.Errorf("set %d has %d of %d choices: %v", f.Set[scope].Id, len(last), f.Set[scope].Count, err)
	}
	n := map[uint32]int{}
	for _, id := range last {
		n[id]++
	}
	return choicesText(f.Flags&uint32(here) != 0, f.Flags&uint32(drop) != 0, n)
}

// options are flags as text, and whether a frontend should have them.
func options() []struct {
	flag bpf.DatapathFrontendFlag
	text string
	want func(*service.Frontend) bool
} {
	return []struct {
		flag bpf.DatapathFrontendFlag
		text string
		want func(*service.Frontend) bool
	}{
		{bpf.DatapathFrontendFlagFRONTEND_RANGES, "restricted", func(f *service.Frontend) bool { return f.Restricted }},
		{bpf.DatapathFrontendFlagFRONTEND_MAGLEV, "maglev",
			func(f *service.Frontend) bool { return f.Algorithm == service.Maglev && f.Scopes != service.Internal }},
		{bpf.DatapathFrontendFlagFRONTEND_LEAST, "least",
			func(f *service.Frontend) bool { return f.Algorithm == service.LeastConnections }},
		{bpf.DatapathFrontendFlagFRONTEND_DSR, "dsr", func(f *service.Frontend) bool {
			return f.Forwarding == service.DSR || f.Forwarding == service.Hybrid && f.Protocol == service.TCP
		}},
		{bpf.DatapathFrontendFlagFRONTEND_QUIC, "quic", func(f *service.Frontend) bool { return f.ServerIDLength > 0 }},
		{bpf.DatapathFrontendFlagFRONTEND_LOCAL_EXTERNAL, "local-external",
			func(f *service.Frontend) bool { return f.ServerIDLength > 0 && f.Local&service.External != 0 }},
		{bpf.DatapathFrontendFlagFRONTEND_LOCAL_INTERNAL, "local-internal",
			func(f *service.Frontend) bool { return f.ServerIDLength > 0 && f.Local&service.Internal != 0 }},
		{bpf.DatapathFrontendFlagFRONTEND_SNAT, "snat", func(f *service.Frontend) bool {
			return f.Forwarding == service.SNAT || f.Forwarding == service.Hybrid && f.Protocol != service.TCP
		}},
	}
}

// slots is the expected number of slots of each backend in a set.
func (r *rig) slots(refs []service.BackendRef, byMaglev bool) map[uint32]int {
	n := map[uint32]int{}
	if !byMaglev || len(refs) < 2 {
		for i, share := range slotCounts(refs) {
			n[refs[i].ID] += share
		}
		return n
	}
	var list []maglev.Backend
	for _, ref := range refs {
		b, _, _ := r.Desired.Backends.Get(r.DB.ReadTxn(), service.BackendByID(ref.ID))
		list = append(list, maglev.Backend{L4Addr: b.L4(), ID: ref.ID, Weight: ref.Weight})
	}
	for _, id := range maglev.Table(testMaglev().Seed, testMaglev().SizeFor(len(refs)), list) {
		n[id]++
	}
	return n
}

func rangeText(key bpf.DatapathSourceRangeKey) string {
	return fmt.Sprintf("range service %d %s", key.Service,
		bpf.DatapathPrefixKey{Length: key.Length - serviceBits, Addr: key.Addr}.Netip())
}

// rangesWanted are the source ranges of the tables, by Service.
func rangesWanted(t service.Tables, txn statedb.ReadTxn) map[uint32]rangeKeys {
	out := map[uint32]rangeKeys{}
	for f := range t.Frontends.All(txn) {
		if f.Restricted {
			out[f.ServiceID] = rangesOf(f)
		}
	}
	return out
}

func serverText(key bpf.DatapathQuicServerKey, backend uint32) string {
	return fmt.Sprintf("server %x of service %d is backend %d", key.Id, key.Service, backend)
}

// serversWanted are the rows of server IDs of the tables.
func (r *rig) serversWanted() (lines []string) {
	type port struct {
		service, number uint32
		v6              bool
	}
	seen := map[port]bool{}
	for f := range r.Desired.Frontends.All(r.DB.ReadTxn()) {
		p := port{f.ServiceID, portNumber(f), f.Address.Addr().Is6()}
		if seen[p] {
			continue
		}
		seen[p] = true
		for _, s := range f.Servers {
			lines = append(lines, serverText(bpf.DatapathQuicServerKey{Id: s.ID, Service: f.ServiceID}, s.Backend))
		}
	}
	return lines
}

func addressText(a service.L4Addr, inside, outside bool) string {
	line := "address " + a.Addr().String()
	if inside {
		line += " internal"
	}
	if outside {
		line += " external"
	}
	return line
}

func choicesText(here, drop bool, n map[uint32]int) string {
	switch {
	case !here:
		return "-"
	case len(n) == 0 && drop:
		return "drop"
	case len(n) == 0:
		return "reject"
	}
	var parts []string
	for _, id := range slices.Sorted(maps.Keys(n)) {
		part := strconv.FormatUint(uint64(id), 10)
		if n[id] > 1 {
			part += "*" + strconv.Itoa(n[id])
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}

// rows are the expected maps, computed from the tables.
func (r *rig) rows() string {
	var lines []string
	rows, inTables, now := 0, 0, r.DB.ReadTxn()
	tables := map[string]int{} // by Service and backends: one for all frontends
	scopes := map[netip.Addr]service.Scope{}
	for f := range r.Desired.Frontends.All(now) {
		scopes[f.Address.Addr()] |= f.Scopes
		line := fmt.Sprintf("frontend %s service %d", f.L4(), f.ServiceID)
		if f.Affinity > 0 {
			line += fmt.Sprintf(" affinity %d", int(f.Affinity.Seconds()))
		}
		if f.ThisNode {
			line += " this-node"
		}
		for _, o := range options() {
			if o.want(f) {
				line += " " + o.text
			}
		}
		alike := f.Scopes == service.Internal|service.External && len(f.Internal) > 0 &&
			service.SameRefs(f.Internal, f.External)
		text := func(scope service.Scope, refs []service.BackendRef) string {
			byMaglev := f.Algorithm == service.Maglev && f.Scopes&service.External != 0 &&
				(scope == service.External || alike)
			n, total := r.slots(refs, byMaglev), 0
			for _, slots := range n {
				total += slots
			}
			if byMaglev && len(refs) > 1 {
				tables[fmt.Sprint(f.ServiceID, n)] = rowsOf(tableFlag, total)
			} else {
				rows += rowsOf(0, total)
			}
			return choicesText(f.Scopes&scope != 0, f.Elsewhere&scope != 0, n)
		}
		line += " internal " + text(service.Internal, f.Internal)
		if alike {
			line += " external likewise"
		} else {
			line += " external " + text(service.External, f.External)
		}
		lines = append(lines, line)
	}
	for _, keys := range rangesWanted(r.Desired, now) {
		for key := range keys {
			lines = append(lines, rangeText(key))
		}
	}
	for a, scope := range scopes {
		lines = append(lines,
			addressText(service.L4(a, 0, 0), scope&service.Internal != 0, scope&service.External != 0))
	}
	for b := range r.Desired.Backends.All(now) {
		lines = append(lines, fmt.Sprintf("backend %d %s", b.ID, b.L4()))
	}
	for _, n := range tables {
		inTables += n
	}
	return servicetest.Sorted(strings.Join(append(append(lines, setsText(rows, inTables)), r.serversWanted()...), "\n"))
}

func each[K, V any](t testing.TB, m *ebpf.Map, fn func(*K, *V)) {
	t.Helper()
	if err := bpf.Each(m, func(k *K, v *V) bool { fn(k, v); return true }); err != nil {
		t.Fatal(err)
	}
}
