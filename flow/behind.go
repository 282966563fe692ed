package flow

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"myelin/bpf"
	"myelin/event"
)

// Behind puts the pod in the place of the node's address in an event that
// speaks of a translated flow as the wire sees it. Other events stay.
func Behind(flows *ebpf.Map, e *event.Raw) error {
	if e.Hook != uint8(bpf.DatapathHookHOOK_FROM_WIRE) || event.TypeOf(e) != event.FlowEnd {
		return nil
	}
	var r Row
	// The smaller address comes first, in the machine's order of bytes: both
	// ways are tried instead of knowing that here.
	for side := range 2 {
		k := Key{Proto: e.Proto}
		k.Addr[side], k.Port[side] = e.Src, e.Sport
		k.Addr[1-side], k.Port[1-side] = e.Dst, e.Dport
		err := flows.Lookup(&k, &r)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look up the flow of an event: %w", err)
		}
		if !translated(&r) {
			return nil
		}
		if podSide(&r) == side {
			e.Src, e.Sport = r.Pod, r.PodPort
		} else {
			e.Dst, e.Dport = r.Pod, r.PodPort
		}
		e.Slot = r.Way.DstSlot
		return nil
	}
	return nil
}
