package bpf

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// Settings is fixed when the programs are loaded.
type Settings = DatapathSettings

// Sizes are entries of maps; 0 keeps the default.
type Sizes struct {
	Flows     uint32 // rows of connections; the map shrinks to one if no feature needs them
	Paths     uint32 // decisions kept, shared out to the CPUs, of which each has its own; at least 1,024 each
	Fragments uint32
	Services  uint32 // frontends, backends, rows of their sets; 0: no Services, and the maps shrink to one row
	// MaglevTables are rows of Maglev tables, 2 KiB each where they are in use; 0: none is made, and the map shrinks to
	// one row.
	MaglevTables uint32
	// Translations are flows that packets are translated for; the map shrinks to one row without Settings.Services.
	Translations uint32
	// Peers are single addresses with an identity, and Prefixes the others; the maps of policies shrink to one row
	// without Settings.Policy.
	Peers, PeerPrefixes uint32
	PeerClasses         uint32
	Verdicts            uint32
}

// Options of Load.
type Options struct {
	Settings Settings
	Sizes    Sizes
	// Entries is the number of entries by map, for maps that Sizes does not name. A map is created with one entry if
	// no feature needs it.
	Entries map[string]uint32
	// Grow: maps are small at first, and as large as the rows of pinned ones need. What Sizes and Entries give them is
	// their limit; tables of conntrack and NAT entries have the sizes that are given. Keep: they do not shrink. Stay:
	// they are as large as they are pinned.
	Grow, Keep, Stay bool
	// DistributedLRU gives LRU maps a list for each CPU, which evicts among its own entries.
	DistributedLRU bool
	// Need is how many rows maps must have room for, by map, if they grow.
	Need map[string]int
	// FlowRoom and NatRoom tell how large the tables of conntrack and NAT entries may be made.
	FlowRoom, NatRoom Room
	// Dir holds the pins, on a bpffs; it is made if it is not there.
	Dir string
	// Listen is which events the programs send until Datapath.Listen is called: those of an agent that takes over from
	// another one miss nothing.
	Listen DatapathListen
	// NoTCX: clsact also where the kernel has TCX.
	NoTCX bool
}

// Datapath is the loaded programs and their maps. Programs forward on when it is closed: what is attached is held by
// pins.
type Datapath struct {
	Objects
	options Options
	Maps    []MapStatus
	// Attacher knows how programs are attached on this kernel.
	Attacher *Attacher

	overlap overlap
	rooms   map[string]Room // of maps that grow
	needs   needs
	// formerOrigins are those that sockets had before the map got another size.
	formerOrigins *ebpf.Map

	l3    late[l3Programs]
	ipsec late[ipsecPrograms]
	proxy late[proxyPrograms]
}

// MapStatus says how a map came to be.
type MapStatus struct {
	Name    string
	Adopted bool   // the pinned one went on being used
	Note    string // why it did not, and what became of its rows
}

// TraceSlots is the programs' Settings.TraceSlots.
func (d *Datapath) TraceSlots() (uint32, error) {
	var s Settings
	if err := d.Config.Get(&s); err != nil {
		return 0, fmt.Errorf("read the configuration of the datapath: %w", err)
	}
	return s.TraceSlots, nil
}

// Load verifies the programs and gives them the maps that an agent before us has pinned, where their layout still fits.
// Nothing that forwards changes: what is attached goes on with the programs it has until Attach. Kernel 5.10 or later.
func Load(o Options) (*Datapath, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raise memory limit for BPF maps: %w", err)
	}
	spec, err := configured(&o)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{"maps", "links"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, dir), 0o700); err != nil {
			return nil, fmt.Errorf("make pin directory: %w", err)
		}
	}
	d := &Datapath{options: o}
	if err := errors.Join(d.renamePins(), d.shrink(spec)); err != nil {
		return nil, err
	}
	adopted, err := d.adopt(spec)
	defer func() {
		for _, m := range adopted {
			m.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	if err := d.follow(spec); err != nil {
		return nil, err
	}
	if err := d.create(spec, adopted); err != nil {
		return nil, err
	}
	if err := d.followPorts(&o.Settings); err != nil {
		return nil, errors.Join(err, d.Objects.Close())
	}
	d.Attacher = newAttacher(d, o.NoTCX)
	if d.overlap.since != 0 {
		d.Attacher.replacements.wait = true
		if err := d.EntriesCopiedUntil.Set(uint32(d.overlap.since) + copyTime*d.options.Settings.Hz); err != nil {
			return nil, errors.Join(fmt.Errorf("set entries_copied_until: %w", err), d.Close())
		}
	}
	return d, nil
}

// configured returns the embedded datapath with its settings and the sizes of its maps. It completes the settings.
func configured(o *Options) (*ebpf.CollectionSpec, error) {
	spec, err := LoadDatapath()
	if err != nil {
		return nil, fmt.Errorf("read embedded datapath: %w", err)
	}
	hz, err := ClockRate()
	if err != nil {
		return nil, err
	}
	o.Settings.Hz = hz
	if o.Settings.Netkit != 0 && o.Settings.NetkitMark == 0 {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		o.Settings.NetkitMark = binary.NativeEndian.Uint64(b[:])
	}
	for name := range o.Entries {
		if spec.Maps[name] == nil {
			return nil, fmt.Errorf("resize map %s: the datapath has no such map", name)
		}
	}
	resize(spec, *o)
	distribute(spec, *o)
	o.Settings.FlowEntries, o.Settings.NatEntryMax = spec.Maps["flows"].MaxEntries,
		spec.Maps["nat_entries"].MaxEntries
	if err := spec.Variables["listening"].Set(uint32(o.Listen)); err != nil {
		return nil, fmt.Errorf("switch events of flows: %w", err)
	}
	return spec, Configure(spec, &o.Settings)
}

// resize shrinks maps of features that are off to one entry, so that they cost nothing.
func resize(spec *ebpf.CollectionSpec, o Options) {
	set := func(name string, n uint32) {
		if n != 0 {
			spec.Maps[name].MaxEntries = n
		}
	}
	set("flows", o.Sizes.Flows)
	set("paths", powerOfTwo(max(o.Sizes.Paths/uint32(ebpf.MustPossibleCPU()), spec.Maps["paths"].MaxEntries)))
	set("fragments", o.Sizes.Fragments)
	for _, name := range []string{"frontends", "backend_slots", "backends", "affinities", "origins"} {
		set(name, max(o.Sizes.Services, 1))
	}
	set("maglev_tables", max(o.Sizes.MaglevTables, 1))
	s := o.Settings
	for name, n := range map[string]uint32{"peers": o.Sizes.Peers, "peer_prefixes": o.Sizes.PeerPrefixes,
		"peer_classes": o.Sizes.PeerClasses, "verdicts": o.Sizes.Verdicts, "policies": 0} {
		set(name, n)
		if s.Policy == 0 {
			set(name, 1)
		}
	}
	for name, n := range o.Entries {
		set(name, n)
	}
	if s.Prefilter == 0 {
		set("denylist", 1)
		set("denylist_prefixes", 1)
	}
	kept := s.FlowAlways != 0 || s.Policy != 0
	flows := kept || s.Masquerade4 != 0 || s.Masquerade6 != 0
	if !kept {
		set("flow_cache", 1)
	}
	if s.Monitor == 0 {
		set("traced_flows", 1)
	}
	if s.L7 == 0 {
		set("names", 1)
	}
	if s.DnsCache == 0 {
		set("dns_entries", 1)
	}
	if s.Policy == 0 {
		set("policy_pairs", 1)
	}
	if !flows {
		set("flows", 1)
	}
	if !flows && s.Services == 0 {
		set("fragments", 1)
	}
	set("port_indexes", portIndexes(s, spec.Maps["flows"].MaxEntries))
	if s.Policy == 0 && s.Direct == 0 && s.Masquerade4 == 0 && s.Masquerade6 == 0 {
		set("pod_netns", 1)
	}
	resizeBackends(set, s, o.Sizes, spec.Maps["service_stats"].MaxEntries)
	resizeServices(set, s, o.Sizes)
}

// resizeBackends is resize for the maps of backends by Service. stats is the number of counters.
func resizeBackends(set func(name string, n uint32), s Settings, sizes Sizes, stats uint32) {
	if sizes.Services == 0 {
		set("service_stats", 1)
	}
	members := sizes.Services
	if s.Direct == 0 {
		set("probes", 1)
		members = min(members, stats)
	}
	set("members", max(members, 1))
	set("quic_servers", 1)
	if s.Quic != 0 {
		set("quic_servers", sizes.Services)
	}
}

// resizeServices is resize for the maps that only translation per packet needs.
func resizeServices(set func(name string, n uint32), s Settings, sizes Sizes) {
	for name, n := range map[string]uint32{"nat_entries": sizes.Translations, "nat_replies": sizes.Translations,
		"nat_ring": sizes.Translations, "source_ranges": max(sizes.Services, 1), "loads": max(sizes.Services, 1)} {
		if s.Services == 0 {
			n = 1
		}
		set(name, n)
	}
}

// portIndexes is the size of the index of NAT ports, where there are n conntrack entries at most.
func portIndexes(s Settings, n uint32) uint32 {
	if s.Masquerade4 == 0 && s.Masquerade6 == 0 {
		return 1
	}
	return n
}

func (d *Datapath) create(spec *ebpf.CollectionSpec, adopted map[string]*ebpf.Map) error {
	if err := d.Assign(spec, &ebpf.CollectionOptions{MapReplacements: adopted}); err != nil {
		return loadError("datapath", err)
	}
	if err := nameHost(d.PodNetns); err != nil {
		return err
	}
	return d.pin(spec, adopted)
}

// loadError has the last lines of what the verifier says.
func loadError(what string, err error) error {
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) {
		return fmt.Errorf("load %s: %w: %s", what, err, lastLines(refused.Log, 3))
	}
	return fmt.Errorf("load %s: %w", what, err)
}

func lastLines(lines []string, n int) string {
	text := ""
	for _, l := range lines[max(0, len(lines)-n):] {
		text += l + "; "
	}
	return text
}

// follow enables the per-CPU flow cache from the first packet on, where some endpoint had policies before
// them.
func (d *Datapath) follow(spec *ebpf.CollectionSpec) error {
	tracking := uint32(d.options.Settings.FlowAlways)
	rows, _, err := d.pinnedRows("policies")
	if err != nil {
		return err
	}
	if rows > 0 {
		tracking = 1
	}
	if err := spec.Variables["tracking"].Set(tracking); err != nil {
		return fmt.Errorf("set datapath configuration: %w", err)
	}
	return nil
}

// Track enables the per-CPU flow cache, as is required where some endpoint has policies. Where every flow has a
// row it always does.
func (d *Datapath) Track(on bool) error {
	var n uint32
	if settings, err := d.Settings(); err != nil {
		return err
	} else if on || settings.FlowAlways != 0 {
		n = 1
	}
	if err := d.Tracking.Set(n); err != nil {
		return fmt.Errorf("switch the flow cache: %w", err)
	}
	return nil
}

// Listen sets which events the datapath sends besides drops: a sum of DatapathListen, 0 for none.
func (d *Datapath) Listen(to DatapathListen) error {
	if err := d.Listening.Set(uint32(to)); err != nil {
		return fmt.Errorf("switch events of flows: %w", err)
	}
	return nil
}

// Close closes the descriptors. What is pinned stays.
func (d *Datapath) Close() error {
	return errors.Join(d.Objects.Close(), d.closeLate(), d.overlap.close(), d.formerOrigins.Close())
}
