package bpf

import (
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// clockRates are the values that CONFIG_HZ can have on the kernels we know.
var clockRates = []uint32{100, 250, 300, 1000}

// clockRate returns the kernel's jiffies a second. The count starts 300 seconds before it would wrap at 32 bits (INITIAL_JIFFIES, linux/jiffies.h), so one
// reading and the time since boot tell the rate. Kernel 5.5 or later has the helper.
func clockRate() (uint32, error) {
	jiffies, err := readJiffies()
	if err != nil {
		return 0, err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read CLOCK_MONOTONIC: %w", err)
	}
	up := time.Duration(now.Nano())
	best, smallest := uint32(0), time.Hour*24*365
	for _, hz := range clockRates {
		ticks := jiffies - uint64(uint32(-300*int64(hz)))
		off := time.Duration(ticks)*time.Second/time.Duration(hz) - up
		if off.Abs() < smallest {
			best, smallest = hz, off.Abs()
		}
	}
	if smallest > up/10+5*time.Second {
		return 0, fmt.Errorf("find the kernel's clock rate: %d jiffies after %s fit none of %v", jiffies, up, clockRates)
	}
	return best, nil
}

// readJiffies runs a program of two instructions.
func readJiffies() (uint64, error) {
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
