// Package bpftest loads the real datapath for tests of what reads it, without
// pins and without devices.
package bpftest

import (
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"myelin/bpf"
	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// Load returns a datapath that lives as long as the test. Settings without Hz
// get 1000, maps the sizes in entries that are given. It skips the
// test where it isn't root's.
func Load(t testing.TB, s bpf.Settings, sizes map[string]uint32) *bpf.Datapath {
	t.Helper()
	return load(t, s, sizes, func(d *bpf.Datapath, spec *ebpf.CollectionSpec) error { return d.Assign(spec, nil) })
}

// LoadMaps is Load without programs, in a tenth of the time.
func LoadMaps(t testing.TB, s bpf.Settings, sizes map[string]uint32) *bpf.Datapath {
	t.Helper()
	return load(t, s, sizes, func(d *bpf.Datapath, spec *ebpf.CollectionSpec) error { return d.AssignMaps(spec) })
}

func load(t testing.TB, s bpf.Settings, sizes map[string]uint32,
	assign func(*bpf.Datapath, *ebpf.CollectionSpec) error) *bpf.Datapath {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to load BPF programs")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	spec, err := bpf.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	if s.Hz == 0 {
		s.Hz = 1000
	}
	if err := bpf.Configure(spec, &s); err != nil {
		t.Fatal(err)
	}
	for name, n := range sizes {
		spec.Maps[name].MaxEntries = n
	}
	d := &bpf.Datapath{}
	if err := assign(d, spec); err != nil {
		t.Fatalf("load datapath: %v", err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// Send runs the program of a hook on a packet that is on the loopback device.
func Send(t testing.TB, d *bpf.Datapath, hook bpf.Hook, f packet.Family, names packet.Names,
	text string) packettest.Result {
	t.Helper()
	program := d.FromPod
	switch hook {
	case bpf.ToPod:
		program = d.ToPod
	case bpf.FromWire:
		program = d.FromWire
	case bpf.ToWire:
		program = d.ToWire
	}
	r, err := packettest.Run(program, packettest.Frame(t, f, names, text), packettest.Options{Ifindex: 1})
	if err != nil {
		t.Fatalf("%s: %s: %v", hook, text, err)
	}
	return r
}
