package bpf

import (
	_ "embed" // for go:embed
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ownSection begins the name of a map that is a variable of the programs.
const ownSection = ".data."

// mine reports whether a map is one of the datapath's own, not the compiler's.
func mine(name string) bool {
	return !strings.HasPrefix(name, ".") || strings.HasPrefix(name, ownSection)
}

// plain is a map's name without a section.
func plain(name string) string { return strings.TrimPrefix(name, ownSection) }

//go:embed former_names.txt
var formerNamesText string

// formerNames are the names that pinned maps had before they were renamed, by today's.
func formerNames() map[string]string {
	names := map[string]string{}
	fields := strings.Fields(formerNamesText)
	for i := 0; i+1 < len(fields); i += 2 {
		names[fields[i]] = fields[i+1]
	}
	return names
}

// renamePins gives maps that another version pinned under a former name the name that they have now.
func (d *Datapath) renamePins() error {
	for name, former := range formerNames() {
		if _, err := os.Stat(d.mapPin(name)); err == nil {
			continue
		}
		if err := os.Rename(d.mapPin(former), d.mapPin(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("rename pinned map %s to %s: %w", former, name, err)
		}
	}
	return nil
}

// adopt opens the pinned maps whose layout is the one the programs want.
func (d *Datapath) adopt(spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	adopted := make(map[string]*ebpf.Map)
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		if !mine(name) {
			continue
		}
		pinned := plain(name)
		m, err := ebpf.LoadPinnedMap(d.mapPin(pinned), nil)
		if errors.Is(err, os.ErrNotExist) {
			d.Maps = append(d.Maps, MapStatus{Name: pinned, Note: "new"})
			continue
		}
		if err != nil {
			return adopted, fmt.Errorf("open pinned map %s: %w", pinned, err)
		}
		want := spec.Maps[name].Copy()
		if strings.HasPrefix(name, ownSection) {
			want.Flags |= unix.BPF_F_MMAPABLE // as the loader makes variables
		}
		if err := want.Compatible(m); err != nil {
			d.Maps = append(d.Maps, MapStatus{Name: pinned, Note: err.Error()})
			m.Close()
			continue
		}
		adopted[name] = m
		d.Maps = append(d.Maps, MapStatus{Name: pinned, Adopted: true})
	}
	return adopted, nil
}

func (d *Datapath) mapPin(name string) string { return filepath.Join(d.options.Dir, "maps", name) }

// pin gives every new map its place, with the rows of the one before it where they still fit.
func (d *Datapath) pin(spec *ebpf.CollectionSpec, adopted map[string]*ebpf.Map) error {
	for i, status := range d.Maps {
		if status.Adopted {
			continue
		}
		m := d.mapByName(status.Name)
		if status.Name == "epochs" {
			if err := scatterEpochs(m); err != nil {
				return err
			}
		}
		if status.Note != "new" {
			d.Maps[i].Note = status.Note + "; " + d.migrate(status.Name, m)
		}
		tmp := d.mapPin(status.Name) + "_new" // bpffs allows no dots
		os.Remove(tmp)
		if err := m.Pin(tmp); err != nil {
			return fmt.Errorf("pin map %s: %w", status.Name, err)
		}
		if err := os.Rename(tmp, d.mapPin(status.Name)); err != nil {
			return fmt.Errorf("pin map %s: %w", status.Name, err)
		}
	}
	return nil
}

// migrate copies rows into a map that replaces a pinned one of the same row layout, and says what it did. Rows that the
// agent's tables don't write again (flows, epochs) would be lost otherwise.
func (d *Datapath) migrate(name string, to *ebpf.Map) string {
	from, err := ebpf.LoadPinnedMap(d.mapPin(name), nil)
	if err != nil {
		return "its rows are lost: " + err.Error()
	}
	kept := false
	defer func() {
		if !kept {
			from.Close()
		}
	}()
	if name == "nat_entries" && from.KeySize() == formerNatKeySize && from.ValueSize() == formerNatEntrySize {
		return d.convertNatEntries(from)
	}
	if !sameRows(from.Type(), to.Type()) || from.KeySize() != to.KeySize() || from.ValueSize() != to.ValueSize() {
		return "its rows have another layout and are made anew"
	}
	if name == "traces" {
		return "its events are forgotten"
	}
	if from.KeySize() == 0 {
		return "it has no rows"
	}
	if kept, err = d.overlap.keep(name, from); err != nil {
		return "its rows are lost: " + err.Error()
	}
	if name == "origins" {
		d.formerOrigins, kept = from, true
	}
	copied, lost := copyRows(from, to)
	return fmt.Sprintf("%d rows copied, %d lost", copied, lost)
}

// sameRows reports whether rows of a map of one type can be copied to one of the other. Maps of NAT entries were LRU
// maps.
func sameRows(from, to ebpf.MapType) bool {
	return from == to || from == ebpf.LRUHash && to == ebpf.Hash
}

// mapByName returns one of the datapath's maps, nil if there is none of the name.
func (o *Objects) mapByName(name string) *ebpf.Map { return o.MapsByName()[name] }

// MapsByName returns all maps of the datapath.
func (o *Objects) MapsByName() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		"affinities": o.Affinities, "backend_slots": o.BackendSlots, "backends": o.Backends,
		"bandwidths": o.Bandwidths, "cpus": o.Cpus,
		"denylist": o.Denylist, "denylist_prefixes": o.DenylistPrefixes, "dns_entries": o.DnsEntries,
		"dns_reports": o.DnsReports, "endpoints": o.Endpoints, "epochs": o.Epochs,
		"events": o.Events, "flow_cache": o.FlowCache, "flow_rates": o.FlowRates, "flows": o.Flows,
		"fragments": o.Fragments, "frontend_filter": o.FrontendFilter, "frontends": o.Frontends,
		"loads": o.Loads, "maglev_tables": o.MaglevTables, "members": o.Members, "quic_servers": o.QuicServers,
		"nat_entries": o.NatEntries, "nat_replies": o.NatReplies, "names": o.Names, "nat_ring": o.NatRing,
		"origins": o.Origins, "own_filter": o.OwnFilter, "paths": o.Paths,
		"peer_classes": o.PeerClasses, "peer_prefixes": o.PeerPrefixes, "peers": o.Peers, "pod_links": o.PodLinks,
		"pod_netns": o.PodNetns, "policies": o.Policies, "policy_pairs": o.PolicyPairs, "port_indexes": o.PortIndexes,
		"prefixes": o.Prefixes, "probes": o.Probes, "proxy_device": o.ProxyDevice,
		"proxy_sockets": o.ProxySockets, "service_stats": o.ServiceStats, "shares": o.Shares,
		"socket_budgets": o.SocketBudgets, "socket_outcomes": o.SocketOutcomes, "source_ranges": o.SourceRanges,
		"traced_flows": o.TracedFlows, "traces": o.Traces, "verdicts": o.Verdicts, "wires": o.Wires,
		"xdp_ports": o.XdpPorts, "xdp_vids": o.XdpVids, "xdp_wires": o.XdpWires,
	}
}
