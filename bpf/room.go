package bpf

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Room is how many entries a map has at first, and how many it may grow to.
type Room struct {
	Start, Limit uint32
	By           string // the keys that set the limit
}

// For is the size of a map that has so many rows: Start, or a multiple of it by a power of 2 of which they use half at
// most, but no more than Limit.
func (r Room) For(rows int) uint32 {
	size := uint64(r.Start)
	for uint64(rows)*2 > size && size < uint64(r.Limit) {
		size *= 2
	}
	return uint32(min(size, uint64(r.Limit)))
}

// Crowded reports whether a map with so many rows of max is to grow.
func (r Room) Crowded(rows int, max uint32) bool {
	return max < r.Limit && uint64(rows)*2 > uint64(max)
}

// startSizes are the entries that maps have at first if they may grow, beside those of conntrack and NAT entries. The
// limit of each is what its feature has configured.
func startSizes() map[string]Room {
	const pods, services, peers = 4096, 4096, 8192
	const lb, policy = "bpf.lbMapMax", "bpf.policyMapMax"
	return map[string]Room{
		"endpoints": {Start: pods}, "pod_links": {Start: pods}, "pod_netns": {Start: pods}, "policies": {Start: pods},
		"bandwidths": {Start: pods}, "names": {Start: 16384}, "dns_entries": {Start: 8192},
		"xdp_ports": {Start: 256}, "xdp_vids": {Start: 256},
		"peers": {Start: peers, By: "myelin.policy.peersMax"}, "peer_classes": {Start: peers, By: policy},
		"verdicts": {Start: peers, By: policy}, "frontends": {Start: services, By: lb},
		"backend_slots": {Start: services, By: lb}, "backends": {Start: services, By: lb},
		"loads": {Start: services, By: lb}, "members": {Start: services, By: lb},
		"quic_servers": {Start: services, By: lb}, "maglev_tables": {Start: 4 * services, By: lb},
		"affinities": {Start: services, By: lb}, "origins": {Start: 2 * services, By: lb},
	}
}

// flowRooms are what may become of the maps that have the size of the table of conntrack or NAT entries.
func (o *Options) flowRooms() map[string]Room {
	return map[string]Room{"flows": o.FlowRoom, "port_indexes": o.FlowRoom, "nat_entries": o.NatRoom,
		"nat_replies": o.NatRoom, "nat_ring": o.NatRoom}
}

// shrink gives maps that grow the sizes that the rows of the pinned ones need, and those that were refused.
func (d *Datapath) shrink(spec *ebpf.CollectionSpec) error {
	o := d.options
	d.rooms = map[string]Room{}
	for name, r := range o.flowRooms() {
		if spec.Maps[name].MaxEntries > 1 && r.Limit != 0 {
			d.rooms[name] = r
		}
	}
	if !o.Grow {
		return nil
	}
	for name, r := range startSizes() {
		r.Limit = spec.Maps[name].MaxEntries
		if r.Limit <= r.Start || o.DistributedLRU && spec.Maps[name].Type == ebpf.LRUHash {
			continue // a CPU evicts entries before the map as a whole is crowded
		}
		d.rooms[name] = r
		rows, size, err := d.pinnedRows(name)
		if err != nil {
			return err
		}
		pinned := min(max(size, r.Start), r.Limit)
		switch wanted := r.For(max(rows, o.Need[name])); {
		case o.Stay, o.Keep && pinned > wanted:
			spec.Maps[name].MaxEntries = pinned
		default:
			spec.Maps[name].MaxEntries = wanted
		}
	}
	return nil
}

// distribute gives LRU maps in use a list for each CPU, which gets an equal part of the entries.
func distribute(spec *ebpf.CollectionSpec, o Options) {
	if !o.DistributedLRU {
		return
	}
	cpus := uint32(ebpf.MustPossibleCPU())
	for _, m := range spec.Maps {
		if m.Type == ebpf.LRUHash && m.MaxEntries > 1 {
			m.Flags |= unix.BPF_F_NO_COMMON_LRU
			m.MaxEntries = (m.MaxEntries + cpus - 1) / cpus * cpus // as the kernel rounds, so that the map is adopted
		}
	}
}

// pinnedRows counts the rows of a pinned map, and has its size: 0 if there is none.
func (d *Datapath) pinnedRows(name string) (rows int, size uint32, err error) {
	m, err := ebpf.LoadPinnedMap(d.mapPin(name), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, os.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("open pinned map %s: %w", name, err)
	}
	defer m.Close()
	if rows, err = count(m); err != nil {
		return 0, 0, fmt.Errorf("count rows of pinned map %s: %w", name, err)
	}
	return rows, m.MaxEntries(), nil
}

// Room is how many entries a map may grow to: what it has, if it does not grow.
func (d *Datapath) Room(name string) int {
	m := d.mapByName(name)
	return int(max(m.MaxEntries(), d.rooms[name].Limit))
}

// Crowded names a map that is to grow, beside those of conntrack and NAT entries, and says why: rows were refused, or
// more than half of it is in use. Empty if there is none.
func (d *Datapath) Crowded() (string, error) {
	flows := d.options.flowRooms()
	for name, r := range d.rooms {
		m := d.mapByName(name)
		if _, counted := flows[name]; counted || m.MaxEntries() >= r.Limit {
			continue
		}
		rows, err := count(m)
		if err != nil {
			return "", fmt.Errorf("count rows of map %s: %w", name, err)
		}
		if r.Crowded(rows, m.MaxEntries()) {
			why := fmt.Sprintf("%d rows use the map %s, which has room for %d: it grows", rows, name, m.MaxEntries())
			return why, nil
		}
	}
	return "", nil
}

// needs are how many rows maps must have room for, by map: they were full.
type needs struct {
	mu   sync.Mutex
	rows map[string]int
}

// Refused notes that a map has had no room for so many rows beside those that it has. Without effect for maps that do
// not grow.
func (d *Datapath) Refused(name string, more int) {
	m, r := d.mapByName(name), d.rooms[name]
	if m == nil || m.MaxEntries() >= r.Limit {
		return
	}
	d.needs.mu.Lock()
	defer d.needs.mu.Unlock()
	if d.needs.rows == nil {
		d.needs.rows = map[string]int{}
	}
	d.needs.rows[name] = max(d.needs.rows[name], int(m.MaxEntries())+more)
}

// Needs is how many rows maps must have room for that were full and may grow, by map.
func (d *Datapath) Needs() map[string]int {
	d.needs.mu.Lock()
	defer d.needs.mu.Unlock()
	return maps.Clone(d.needs.rows)
}

// TakeOverOrigins copies the origins of sockets that were connected after the map had been copied to one of another
// size. It is called once, after all programs have been attached.
func (d *Datapath) TakeOverOrigins() error {
	from := d.formerOrigins
	if d.formerOrigins = nil; from == nil {
		return nil
	}
	err := Each(from, func(k *DatapathOriginKey, o *DatapathOrigin) bool {
		_ = d.Origins.Update(k, o, ebpf.UpdateNoExist) // it fails for those that were copied
		return true
	})
	return errors.Join(err, from.Close())
}
