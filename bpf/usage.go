package bpf

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Usage is how full a map is and what it costs.
type Usage struct {
	Name string `json:"name"`
	Type string `json:"type"`
	// PerCPU: an LRU map of which each CPU has an equal part, and evicts among its own entries.
	PerCPU bool `json:"perCPU,omitempty"`
	// Entries is -1 for maps whose rows don't come and go.
	Entries int `json:"entries"`
	Max     int `json:"maxEntries"` // of a ring buffer: bytes
	// Start is what Max was at first, and Limit what the map may grow to, by the keys in LimitedBy. They are Max for
	// maps that do not grow.
	Start     int    `json:"startEntries"`
	Limit     int    `json:"limitEntries"`
	LimitedBy string `json:"limitedBy,omitempty"`
	// Bytes of kernel memory that it holds now, as the kernel reckons; before
	// 6.4 that it may hold at most.
	Bytes uint64 `json:"bytes"`
	// Adopted: the map of an earlier agent went on being used.
	Adopted bool   `json:"adopted"`
	Note    string `json:"note,omitempty"`
}

// Pressure is the part of the map that is in use, 0 to 1, or -1 where that has
// no meaning.
func (u *Usage) Pressure() float64 {
	if u.Entries < 0 || u.Max == 0 {
		return -1
	}
	return float64(u.Entries) / float64(u.Max)
}

// TableHeader names the columns of TableRow.
func (*Usage) TableHeader() []string {
	return []string{"Map", "Type", "Entries", "Start", "Max", "Limit", "Pressure", "kB", "Origin", "Note"}
}

// TableRow is the row as text.
func (u *Usage) TableRow() []string {
	kind, entries, pressure, origin, note := u.Type, "-", "-", "new", u.Note
	if u.PerCPU {
		kind += ", by CPU"
	}
	if u.Entries >= 0 {
		entries, pressure = strconv.Itoa(u.Entries), fmt.Sprintf("%.1f%%", 100*u.Pressure())
	}
	if u.Adopted {
		origin = "adopted"
	}
	if note == "new" {
		note = ""
	}
	limit := strconv.Itoa(u.Limit)
	if u.LimitedBy != "" {
		limit += " (" + u.LimitedBy + ")"
	}
	return []string{u.Name, kind, entries, strconv.Itoa(u.Start), strconv.Itoa(u.Max), limit, pressure,
		strconv.FormatUint((u.Bytes+1023)/1024, 10), origin, note}
}

// usageAge is for how long a count is good: reading large maps is work.
const usageAge = 10 * time.Second

// Usages counts rows, at most every usageAge.
type Usages struct {
	Datapath *Datapath
	Now      func() time.Time

	mu   sync.Mutex
	last []*Usage
	at   time.Time
}

// Read returns the usage of each map, by name. It may be ten seconds old.
func (u *Usages) Read() ([]*Usage, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := u.Now(); u.last == nil || now.Sub(u.at) >= usageAge {
		list, err := u.Datapath.usage()
		if err != nil {
			return nil, err
		}
		u.last, u.at = list, now
	}
	return u.last, nil
}

func (d *Datapath) usage() ([]*Usage, error) {
	all := d.MapsByName()
	var list []*Usage
	for _, name := range slices.Sorted(maps.Keys(all)) {
		m := all[name]
		u := &Usage{Name: name, Type: m.Type().String(), Entries: -1, Max: int(m.MaxEntries())}
		u.Start, u.Limit = u.Max, d.Room(name)
		if r, ok := d.rooms[name]; ok {
			u.Start, u.LimitedBy = int(r.Start), r.By
		}
		info, err := m.Info()
		if err != nil {
			return nil, fmt.Errorf("read about map %s: %w", name, err)
		}
		u.Bytes, _ = info.Memlock()
		u.PerCPU = info.Flags&unix.BPF_F_NO_COMMON_LRU != 0
		if i := slices.IndexFunc(d.Maps, func(s MapStatus) bool { return s.Name == name }); i >= 0 {
			u.Adopted, u.Note = d.Maps[i].Adopted, d.Maps[i].Note
		}
		if dynamic(m.Type()) {
			if u.Entries, err = count(m); err != nil {
				return nil, fmt.Errorf("count rows of map %s: %w", name, err)
			}
		}
		list = append(list, u)
	}
	return list, nil
}

// dynamic reports whether rows of such a map come and go.
func dynamic(t ebpf.MapType) bool {
	return t == ebpf.Hash || t == ebpf.LRUHash || t == ebpf.LPMTrie || t == ebpf.DevMapHash
}

// count reads rows of any layout. Batches need arrays of the right size, which
// only reflection can make.
func count(m *ebpf.Map) (int, error) {
	if m.Type() == ebpf.LPMTrie { // few rows, and batches since 5.14 only
		return countSlowly(m)
	}
	size := int(min(batch, m.MaxEntries()))
	keys, values := rows(m.KeySize(), size), rows(m.ValueSize(), size)
	var cursor ebpf.MapBatchCursor
	total := 0
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		total += n
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return total, nil
		}
		if err != nil { // a kernel without batches, or a bucket larger than one
			return countSlowly(m)
		}
	}
}

func rows(size uint32, n int) any {
	t := reflect.ArrayOf(int(size), reflect.TypeFor[byte]())
	return reflect.MakeSlice(reflect.SliceOf(t), n, n).Interface()
}

func countSlowly(m *ebpf.Map) (int, error) {
	total := 0
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	each := m.Iterate()
	for each.Next(&key, &value) {
		total++
	}
	return total, each.Err()
}
