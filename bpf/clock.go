package bpf

import (
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// ClockRate returns the kernel's jiffies a second (CONFIG_HZ): a coarse clock moves with each of them, and says so.
func ClockRate() (uint32, error) {
	var tick unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &tick); err != nil {
		return 0, fmt.Errorf("read the kernel's clock rate: %w", err)
	}
	ns := time.Duration(tick.Nano())
	if ns < time.Millisecond || ns > 10*time.Millisecond {
		return 0, fmt.Errorf("read the kernel's clock rate: a tick of %s is none of 100 to 1,000 a second", ns)
	}
	return uint32((time.Second + ns/2) / ns), nil
}

// readJiffies runs a program of two instructions. It may be called before Load.
func readJiffies() (uint64, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return 0, fmt.Errorf("raise memory limit for BPF maps: %w", err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return 0, fmt.Errorf("make map to read the kernel's clock: %w", err)
	}
	defer m.Close()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:    ebpf.SchedCLS,
		License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.FnJiffies64.Call(),
			asm.Mov.Reg(asm.R6, asm.R0),
			asm.StoreImm(asm.R10, -4, 0, asm.Word),
			asm.Mov.Reg(asm.R2, asm.R10),
			asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.StoreMem(asm.R0, 0, asm.R6, asm.DWord),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
			asm.Return(),
		},
	})
	if err != nil {
		return 0, fmt.Errorf("load program to read the kernel's clock: %w", err)
	}
	defer p.Close()
	if _, _, err := p.Test(make([]byte, 64)); err != nil {
		return 0, fmt.Errorf("read the kernel's clock: %w", err)
	}
	var jiffies uint64
	if err := m.Lookup(uint32(0), &jiffies); err != nil {
		return 0, fmt.Errorf("read the kernel's clock: %w", err)
	}
	return jiffies, nil
}
