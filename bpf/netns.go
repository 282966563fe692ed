package bpf

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// hostNetns is NETNS_HOST of connection.h: sockets of the namespace that the
// hook's device is in.
const hostNetns = int32(-1)

// nameHost writes where the sockets of the node itself are.
func nameHost(podNetns *ebpf.Map) error {
	if err := podNetns.Put(uint32(DatapathEndpointSlotSLOT_HOST), DatapathNetns{Id: hostNetns}); err != nil {
		return fmt.Errorf("write the node's row of pod_netns: %w", err)
	}
	return nil
}
