package flow

import (
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
	side, err := bpf.FindFlow(flows, bpf.End{Addr: e.Src, Port: e.Sport}, bpf.End{Addr: e.Dst, Port: e.Dport},
		e.Proto, &r)
	if err != nil {
		return fmt.Errorf("look up the flow of an event: %w", err)
	}
	if side < 0 || !translated(&r) {
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
