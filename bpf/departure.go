package bpf

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
)

// HaveDepartureTimes reports whether the departure time that a program gives a packet outlasts its redirection (kernel
// 5.18).
func HaveDepartureTimes() bool {
	return features.HaveProgramHelper(ebpf.SchedCLS, asm.FnSkbSetTstamp) == nil
}
