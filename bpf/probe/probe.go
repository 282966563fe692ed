// Package probe probes the kernel for what the datapath needs of it.
package probe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/rlimit"

	"myelin/bpf"
	"myelin/bpf/hooks"
	"myelin/doctor/check"
)

// Checks are the doctor's checks of the kernel's BPF.
func Checks() []check.Check {
	return []check.Check{
		{Area: "bpf", Privileged: true, Run: probeAll},
		{Area: "bpf", Privileged: true, Run: datapath},
	}
}

// probe is a feature of the kernel's BPF, asked for by trying.
type probe struct {
	name  string
	since string // kernel
	try   func() error
	level check.Level // if it is missing
	why   string
	do    string
}

const newer = "boot a newer kernel, or one that is built with it"

func probes() []probe {
	list := []probe{
		{"program type sched_cls", "4.1", programType(ebpf.SchedCLS), check.Fail,
			"the datapath is made of such programs", newer},
		{"program type xdp", "4.8", programType(ebpf.XDP), check.Info,
			"load balancing in the driver will need it", newer},
		{"program type cgroup_sock_addr", "4.17", programType(ebpf.CGroupSockAddr), check.Info,
			"load balancing at sockets will need it", newer},
	}
	for _, h := range []struct {
		fn    asm.BuiltinFunc
		since string
		why   string
	}{
		{asm.FnRedirectPeer, "5.10", "packets enter pods by it"},
		{asm.FnRedirectNeigh, "5.10", "packets leave by wires with it"},
		{asm.FnFibLookup, "4.18", "eBPF host routing asks the kernel's routes by it"},
		{asm.FnSkbSetTunnelKey, "4.3", "tunnels need it"},
		{asm.FnRingbufReserve, "5.8", "events leave by it"},
		{asm.FnJiffies64, "5.5", "the datapath's clock"},
	} {
		list = append(list, probe{"helper " + h.fn.String(), h.since, helper(h.fn), check.Fail, h.why, newer})
	}
	for _, m := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash, ebpf.LPMTrie, ebpf.PerCPUArray, ebpf.RingBuf} {
		list = append(list, probe{"map type " + m.String(), "", func() error {
			return features.HaveMapType(m)
		}, check.Fail, "the datapath has such a map", newer})
	}
	return append(list,
		probe{"batches of map rows", "5.6", tryBatch, check.Info,
			"listing large maps takes several times as long", newer},
		probe{"TCX", "6.6", hooks.TCX, check.Info,
			"programs hang on clsact filters instead, which anybody can remove, and which are not replaced as one step",
			newer},
		probe{"JIT compiler", "", tryJIT, check.Warn, "programs are interpreted, several times slower",
			"build the kernel with CONFIG_BPF_JIT, set net.core.bpf_jit_enable to 1"},
	)
}

func programType(t ebpf.ProgramType) func() error {
	return func() error { return features.HaveProgramType(t) }
}

func helper(fn asm.BuiltinFunc) func() error {
	return func() error { return features.HaveProgramHelper(ebpf.SchedCLS, fn) }
}

func probeAll(m *check.Machine) {
	if err := rlimit.RemoveMemlock(); err != nil {
		m.Warn("the limit of locked memory can't be raised: "+err.Error(), "the probes below may fail for want of it",
			"run as root")
	}
	good := 0
	for _, p := range probes() {
		err := p.try()
		if err == nil {
			good++
			continue
		}
		text := "the kernel lacks " + p.name
		if !errors.Is(err, ebpf.ErrNotSupported) {
			text = p.name + " can't be probed: " + err.Error()
		}
		if p.since != "" {
			text += " (kernel " + p.since + ")"
		}
		m.Add(p.level, text, p.why, p.do)
	}
	m.OK("%d of %d features of BPF that Myelin uses or will use are there", good, len(probes()))
	if _, err := os.Stat(filepath.Join(m.Sys, "kernel/btf/vmlinux")); err != nil {
		m.Info("the kernel has no BTF: "+err.Error(), "tracing programs need it; the datapath does not",
			"build the kernel with CONFIG_DEBUG_INFO_BTF")
	} else {
		m.OK("the kernel describes its types (BTF)")
	}
}

// tryBatch writes two rows at once.
func tryBatch() error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 2})
	if err != nil {
		return err
	}
	defer m.Close()
	_, err = m.BatchUpdate([]uint32{1, 2}, []uint32{1, 2}, nil)
	return err
}

// tryJIT loads a program and looks whether it was compiled.
func tryJIT() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0),
			asm.Return()},
	})
	if err != nil {
		return err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return err
	}
	if size, err := info.JitedSize(); err == nil && size == 0 {
		return fmt.Errorf("program was not compiled: %w", ebpf.ErrNotSupported)
	}
	return nil
}

// datapath loads the very programs, with everything on and small maps, and
// forgets them: no list of features is as sure.
func datapath(m *check.Machine) {
	begin := time.Now()
	err := tryDatapath()
	var refused *ebpf.VerifierError
	switch {
	case err == nil:
		m.OK("the kernel accepts the datapath, in %s", time.Since(begin).Round(time.Millisecond))
	case errors.As(err, &refused):
		m.Fail(fmt.Sprintf("the kernel refuses the datapath: %v", refused), "nothing works without it",
			"report it, with the kernel's version")
	default:
		m.Fail("the datapath can't be loaded: "+err.Error(), "nothing works without it", "")
	}
}

func tryDatapath() error {
	spec, err := bpf.LoadDatapath()
	if err != nil {
		return err
	}
	settings := bpf.Settings{
		Ipv4: 1, Ipv6: 1, Masquerade4: 1, Masquerade6: 1, FlowAlways: 1, Monitor: 1, EventRate: 1, Hz: 250,
		NatPortMin: 10000, NatPortMax: 29999, Tunnel: uint8(bpf.DatapathTunnelModeTUNNEL_IPV4), TunnelIfindex: 1,
	}
	if err := spec.Variables["config"].Set(settings); err != nil {
		return err
	}
	for _, m := range spec.Maps {
		if m.Type == ebpf.Hash || m.Type == ebpf.LRUHash || m.Type == ebpf.LPMTrie {
			m.MaxEntries = 16
		}
	}
	var objects bpf.Objects
	if err := objects.Assign(spec, nil); err != nil {
		return err
	}
	return objects.Close()
}
