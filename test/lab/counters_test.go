package labtest

import (
	"path/filepath"

	"github.com/cilium/ebpf"

	"myelin/bpf"
)

// pinnedMap opens a map of a node's datapath.
func (c *cluster) pinnedMap(node, name string) *ebpf.Map {
	c.t.Helper()
	m, err := ebpf.LoadPinnedMap(c.pin(node, name), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// pin is where a node's map is pinned.
func (c *cluster) pin(node, name string) string {
	return filepath.Join(c.Node(node).BPFRoot(), "myelin", "maps", name)
}

// outcome is how many packets ended so on a node, at all hooks and CPUs.
func (c *cluster) outcome(node string, o bpf.DatapathOutcome) (n uint64) {
	c.t.Helper()
	for hook := range bpf.DatapathHookHOOKS {
		n += c.outcomeAt(node, hook, o)
	}
	return n
}

// outcomeAt is how many did at one hook.
func (c *cluster) outcomeAt(node string, hook bpf.DatapathHook, o bpf.DatapathOutcome) (n uint64) {
	c.t.Helper()
	m := c.pinnedMap(node, "cpus")
	defer m.Close()
	var cpus []bpf.DatapathCpu
	if err := m.Lookup(uint32(0), &cpus); err != nil {
		c.t.Fatal(err)
	}
	for _, cpu := range cpus {
		n += cpu.Counters[hook][o].Packets
	}
	return n
}
