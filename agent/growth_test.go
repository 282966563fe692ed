package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/config"
	"myelin/flow"
)

func TestSizeFor(t *testing.T) {
	for name, tc := range map[string]struct{ entries, base, limit, want int }{
		"empty":                      {0, 65536, 1 << 20, 65536},
		"three eighths":              {24576, 65536, 1 << 20, 65536},
		"one more":                   {24577, 65536, 1 << 20, 131072},
		"full":                       {65536, 65536, 1 << 20, 262144},
		"a million":                  {1 << 20, 65536, 8 << 20, 4 << 20},
		"limited":                    {1 << 20, 65536, 200000, 200000},
		"limit below the configured": {65536, 65536, 1000, 65536},
	} {
		if got := sizeFor(tc.entries, tc.base, tc.limit); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// TestGrownFor: a table that grows has room for twice its entries; one that is large enough keeps its size, and one
// whose flows are over shrinks.
func TestGrownFor(t *testing.T) {
	for name, tc := range map[string]struct {
		pinned bpf.Pinned
		keep   bool
		want   int
	}{
		"none":              {bpf.Pinned{}, false, 16384},
		"not in use":        {bpf.Pinned{Max: 16384}, false, 16384},
		"crowded":           {bpf.Pinned{Counted: 6145, Max: 16384}, false, 65536},
		"grown":             {bpf.Pinned{Counted: 6145, Max: 65536}, false, 32768},
		"over":              {bpf.Pinned{Counted: 100, Max: 65536}, false, 16384},
		"over, in a reload": {bpf.Pinned{Counted: 100, Max: 65536}, true, 65536},
		"a flood":           {bpf.Pinned{Counted: 100, Rows: 20000, Max: 262144}, false, 65536},
		"a flood, full":     {bpf.Pinned{Counted: 100, Rows: 16384, Max: 16384}, false, 16384},
		"another limit":     {bpf.Pinned{Counted: 100, Max: 1 << 20}, true, 200000},
		"limited":           {bpf.Pinned{Counted: 50000, Max: 65536}, false, 200000},
	} {
		if got := grownFor(tc.pinned, 16384, 200000, tc.keep); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestTooSmall(t *testing.T) {
	for name, tc := range map[string]struct {
		table string
		usage flow.Usage
		want  string
	}{
		"a flood":    {"flows", flow.Usage{Entries: 1000, Max: 1000}, ""},
		"crowded":    {"nat_entries", flow.Usage{Demand: 376, Max: 1000}, "nat_entries"},
		"room":       {"flows", flow.Usage{Demand: 375, Max: 1000}, ""},
		"at limit":   {"flows", flow.Usage{Demand: 4000, Max: 4000}, ""},
		"not in use": {"flows", flow.Usage{Demand: 1, Max: 1}, ""},
	} {
		if got := tooSmall(map[string]flow.Usage{tc.table: tc.usage}, 4000); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestGrowthStuck: without memory for larger tables, the programs are loaded with those that there are.
func TestGrowthStuck(t *testing.T) {
	other := errors.New("another error")
	for name, c := range map[string]struct {
		file  string
		fails []error
		tries []uint32 // sizes of the table of flows
		stuck bool
		err   error
	}{
		"memory":           {"", nil, []uint32{16384}, false, nil},
		"no memory":        {"", []error{fmt.Errorf("create: %w", unix.ENOMEM)}, []uint32{16384, 16384}, true, nil},
		"no memory at all": {"", []error{unix.ENOMEM, unix.ENOMEM}, []uint32{16384, 16384}, true, unix.ENOMEM},
		"another error":    {"", []error{other}, []uint32{16384}, false, other},
		"sizes are set": {"bpf.ctTcpMax: 2048", []error{unix.ENOMEM}, []uint32{2048 + 16384, 2048 + 16384}, true,
			nil},
		"sizes are set, nothing grows": {"bpf: {ctTcpMax: 2048, preallocateMaps: true}", []error{unix.ENOMEM},
			[]uint32{2048 + 16384}, false, unix.ENOMEM},
		"all at once":      {"bpf.preallocateMaps: true", nil, []uint32{65536}, false, nil},
		"it does not grow": {"myelin.mapGrowthRatio: 0", []error{unix.ENOMEM}, []uint32{65536}, false, unix.ENOMEM},
	} {
		parsed, err := config.Parse([]byte(c.file+"\n"), "f")
		if err != nil {
			t.Fatal(err)
		}
		parsed.Myelin.BPFRoot = t.TempDir() // no pinned maps
		d := agentWith(parsed).datapath
		d.memory = func() (uint64, error) { return 64 << 30, nil }
		var tries []uint32
		d.load = func(o bpf.Options) (*bpf.Datapath, error) {
			tries = append(tries, o.Sizes.Flows)
			if len(tries) <= len(c.fails) {
				return nil, c.fails[len(tries)-1]
			}
			return &bpf.Datapath{}, nil
		}
		sizes, err := d.sizes()
		if err != nil {
			t.Fatal(err)
		}
		err = d.loadGrown(bpf.Options{Sizes: sizes, Grow: parsed.GrowsMaps()})
		if !errors.Is(err, c.err) || !slices.Equal(tries, c.tries) || (d.growth.stuck != "") != c.stuck {
			t.Errorf("%s: tries %v, stuck %q, error %v", name, tries, d.growth.stuck, err)
		}
		if c.stuck && !strings.Contains(d.growth.stuck, fmt.Sprint(tries[0], " conntrack")) {
			t.Errorf("%s: %q names no sizes", name, d.growth.stuck)
		}
	}
}

// TestRequire: what one life of the agent requires is the least that the next one has room for.
func TestRequire(t *testing.T) {
	first := map[string]int{"flows": 10, "peers": 3}
	d := &datapath{Node: &feature.Node{}, need: first}
	d.require("flows", 7)
	d.require("nat_entries", 5)
	if want := map[string]int{"flows": 10, "nat_entries": 5, "peers": 3}; !maps.Equal(d.needs(), want) {
		t.Errorf("%v, want %v", d.needs(), want)
	}
	if len(first) != 2 {
		t.Error("the map of the life before was written")
	}
}
