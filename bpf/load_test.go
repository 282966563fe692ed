package bpf

import "testing"

// TestSizes: what is off costs one row.
func TestSizes(t *testing.T) {
	all := Sizes{Flows: 5000, Fragments: 3000, Services: 2000, Translations: 4000, MaglevTables: 7000}
	off := map[string]uint32{"flows": 1, "flow_cache": 1, "policy_pairs": 1, "fragments": 1, "frontends": 1,
		"origins": 1, "nat_entries": 1, "source_ranges": 1, "loads": 1, "maglev_tables": 1,
		"members": 1, "service_stats": 1, "quic_servers": 1}
	for name, c := range map[string]struct {
		options Options
		want    map[string]uint32
	}{
		"nothing": {Options{}, off},
		"only sockets": {Options{Sizes: all}, map[string]uint32{"flows": 1, "fragments": 1, "frontends": 2000,
			"origins": 2000, "nat_entries": 1, "source_ranges": 1, "loads": 1, "members": 2000, "service_stats": 4096}},
		"packets": {Options{Sizes: all, Settings: Settings{Services: 1}},
			map[string]uint32{"flows": 1, "fragments": 3000, "frontends": 2000, "maglev_tables": 7000,
				"nat_entries": 4000, "source_ranges": 2000, "loads": 2000}},
		"packets, many Services": {Options{Sizes: Sizes{Services: 20000}, Settings: Settings{Services: 1}},
			map[string]uint32{"members": 4096, "service_stats": 4096}},
		"direct, many Services": {Options{Sizes: Sizes{Services: 20000}, Settings: Settings{Services: 1, Direct: 1}},
			map[string]uint32{"members": 20000, "service_stats": 4096}},
		"QUIC and DSR": {Options{Sizes: all, Settings: Settings{Services: 1, Quic: 1, Direct: 1}},
			map[string]uint32{"quic_servers": 2000, "members": 2000}},
		"masquerade": {Options{Sizes: all, Settings: Settings{Masquerade6: 1}},
			map[string]uint32{"flows": 5000, "flow_cache": 1, "fragments": 3000, "nat_entries": 1}},
		"policies": {Options{Sizes: all, Settings: Settings{Policy: 1}},
			map[string]uint32{"flows": 5000, "flow_cache": 1024, "policy_pairs": 512}},
		"tracking": {Options{Sizes: all, Settings: Settings{FlowAlways: 1}},
			map[string]uint32{"flows": 5000, "flow_cache": 1024, "fragments": 3000}},
	} {
		spec, err := LoadDatapath()
		must(t, err)
		resize(spec, c.options)
		for m, want := range c.want {
			if got := spec.Maps[m].MaxEntries; got != want {
				t.Errorf("%s: %s has room for %d, want %d", name, m, got, want)
			}
		}
	}
}
