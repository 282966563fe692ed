package bpf

import (
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

// formerNames are the names that pinned maps had before they were renamed, by today's.
func formerNames() map[string]string {
	return map[string]string{
		"backend_slots":     "backend_slots",
		"denylist":          "denylist",
		"denylist_prefixes": "denylist_prefixes",
		"flow_cache":        "flow_cache",
		"nat_entries":       "nat_entries",
	}
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
	if err := d.renamePins(); err != nil {
		return adopted, err
	}
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

func (d *Datapath) mapPin(name string) string { return filepath.Join(d.dir, "maps", name) }

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
	defer from.Close()
	if from.Type() != to.Type() || from.KeySize() != to.KeySize() || from.ValueSize() != to.ValueSize() {
		return "its rows have another layout and are made anew"
	}
	if from.KeySize() == 0 {
		return "it has no rows"
	}
	copied, lost := 0, 0
	key, value := make([]byte, from.KeySize()), make([]byte, from.ValueSize())
	rows := from.Iterate()
	for rows.Next(&key, &value) {
		if to.Put(key, value) == nil {
			copied++
		} else {
			lost++
		}
	}
	return fmt.Sprintf("%d rows copied, %d lost", copied, lost)
}

// mapByName returns one of the datapath's maps, nil if there is none of the name.
func (d *Datapath) mapByName(name string) *ebpf.Map { return d.MapsByName()[name] }

// MapsByName returns all maps of the datapath.
func (d *Datapath) MapsByName() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		"affinities": d.Affinities, "backend_slots": d.BackendSlots, "backends": d.Backends, "cpus": d.Cpus,
		"denylist": d.Denylist, "denylist_prefixes": d.DenylistPrefixes, "endpoints": d.Endpoints, "epochs": d.Epochs,
		"events": d.Events, "flow_cache": d.FlowCache, "flows": d.Flows, "fragments": d.Fragments,
		"frontends": d.Frontends, "loads": d.Loads, "maglev_tables": d.MaglevTables, "members": d.Members,
		"nat_entries": d.NatEntries, "origins": d.Origins, "own_filter": d.OwnFilter, "paths": d.Paths,
		"peer_classes": d.PeerClasses, "peer_prefixes": d.PeerPrefixes, "peers": d.Peers, "pod_links": d.PodLinks,
		"pod_netns": d.PodNetns, "policies": d.Policies, "policy_pairs": d.PolicyPairs, "port_indexes": d.PortIndexes,
		"prefixes": d.Prefixes, "shares": d.Shares, "socket_outcomes": d.SocketOutcomes,
		"source_ranges": d.SourceRanges, "verdicts": d.Verdicts, "wires": d.Wires,
		"xdp_ports": d.XdpPorts, "xdp_wires": d.XdpWires,
	}
}
