package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"myelin/config/key"
)

// Setting is one key with its value, as `myelin config view` prints it.
type Setting struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Default string `json:"default"`
	// Source is the file that set the key, "default", or "derived" where the
	// value follows from others.
	Source string `json:"source"`
}

// Explain lists every key that the agent acts on.
func (c *Config) Explain() []Setting {
	base := Default()
	var out []Setting
	for _, s := range settings() {
		row := Setting{Key: s.Name, Value: s.Get(c), Default: s.Get(base), Source: "default"}
		switch {
		case c.isSet(s.Name):
			row.Source = c.set[s.Name]
		case row.Value != row.Default:
			row.Source = "derived"
		}
		out = append(out, row)
	}
	return out
}

// Select returns the settings of the keys that are named, or of all below one ("bpf"); all without keys.
func Select(all []Setting, keys []string) ([]Setting, error) {
	if len(keys) == 0 {
		return all, nil
	}
	var out []Setting
	var errs []error
	for _, key := range keys {
		n := len(out)
		for _, s := range all {
			if s.Key == key || strings.HasPrefix(s.Key, key+".") {
				out = append(out, s)
			}
		}
		if len(out) == n {
			errs = append(errs, unknownKey(all, key))
		}
	}
	return out, errors.Join(errs...)
}

func unknownKey(all []Setting, key string) error {
	known := make([]string, len(all))
	for i, s := range all {
		known[i] = s.Key
	}
	slices.Sort(known)
	if hint := suggest(key, known); hint != "" {
		return fmt.Errorf("%s: unknown key: %s", key, hint)
	}
	return fmt.Errorf("%s: unknown key", key)
}

// Sizes are the sizes of the maps that grow with traffic, in entries.
type Sizes struct{ Flows, Paths int }

// Sizes are the sizes of the flow and the path map. A flow holds what Cilium
// keeps in its connection tables and its NAT table, so its size is ctTcpMax
// and ctAnyMax together. With bpf.mapDynamicSizeRatio, sizes that are not set
// share that part of memory (bytes in all, from MemTotal) by the proportion of
// their defaults; flowBytes and pathBytes are what an entry costs.
func (c *Config) Sizes(memory uint64, flowBytes, pathBytes int) Sizes {
	base := Default().BPF
	tcp, other, paths := c.BPF.CtTCPMax, c.BPF.CtAnyMax, c.BPF.NeighMax
	if c.BPF.MapDynamicSizeRatio > 0 {
		cost := float64(base.CtTCPMax+base.CtAnyMax)*float64(flowBytes) + float64(base.NeighMax)*float64(pathBytes)
		scale := c.BPF.MapDynamicSizeRatio * float64(memory) / max(cost, 1)
		dynamic := func(name string, set, base int) int {
			if c.isSet(name) {
				return set
			}
			return int(min(max(scale*float64(base), key.MinMapEntries), key.MaxMapEntries))
		}
		tcp = dynamic("bpf.ctTcpMax", tcp, base.CtTCPMax)
		other = dynamic("bpf.ctAnyMax", other, base.CtAnyMax)
		paths = dynamic("bpf.neighMax", paths, base.NeighMax)
	}
	return Sizes{Flows: min(tcp+other, key.MaxMapEntries), Paths: paths}
}

// GrowsMaps reports whether maps are small at first and grow. Otherwise they have their largest sizes at once.
func (c *Config) GrowsMaps() bool { return c.Myelin.MapGrowthRatio > 0 && !c.BPF.PreallocateMaps }

// FlowLimit is the number of entries that each of the tables of conntrack and NAT entries may grow to, and the keys
// that set it; 0 if they do not grow: if one of their sizes is set, or myelin.mapGrowthRatio is 0. flows is what
// bpf.mapDynamicSizeRatio gives them. Without it, both tables together take myelin.mapGrowthRatio of memory (bytes in
// all, from MemTotal); flowBytes is what an entry of each costs.
func (c *Config) FlowLimit(memory uint64, flows, flowBytes int) (entries int, by string) {
	switch {
	case c.isSet("bpf.ctTcpMax") || c.isSet("bpf.ctAnyMax") || c.Myelin.MapGrowthRatio <= 0:
		return 0, ""
	case c.BPF.MapDynamicSizeRatio > 0:
		return flows, "bpf.mapDynamicSizeRatio"
	}
	share := c.Myelin.MapGrowthRatio * float64(memory) / float64(max(flowBytes, 1))
	return int(min(share, key.MaxMapEntries)), "myelin.mapGrowthRatio"
}

// FlowStart is the number of entries that tables of conntrack and NAT entries have at first, where limit is what they
// may grow to and flows what they have if they do not grow: an eighth of the limit, a power of 2 from 2,048 to 16,384.
func (c *Config) FlowStart(limit, flows int) int {
	if limit == 0 || !c.GrowsMaps() || c.LoadBalancer.Standalone {
		return flows
	}
	size := 2 * key.MinMapEntries
	for size < 16384 && 2*size <= limit/8 {
		size *= 2
	}
	return min(size, flows)
}

// FlowLRUStart is FlowStart for the table of conntrack entries, which is an LRU map. It is not small if CPUs have lists
// of their own: a CPU would evict entries before the table as a whole is crowded.
func (c *Config) FlowLRUStart(limit, flows int) int {
	if c.BPF.DistributedLRU {
		return flows
	}
	return c.FlowStart(limit, flows)
}
