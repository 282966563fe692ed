package podlink

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ProbeNetkit returns an error where the kernel has no netkit devices. It asks which programs the loopback device has:
// a kernel with netkit says that this is no netkit device.
func ProbeNetkit() error {
	_, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachNetkitPrimary})
	if err == nil || errors.Is(err, unix.ENXIO) {
		return nil
	}
	return fmt.Errorf("the kernel has no netkit (6.7 or later, CONFIG_NETKIT): %w", err)
}

// Open lets packets pass where a netkit device has no program: Create makes both sides drop them, so that the pod sends
// and receives nothing before the datapath's programs are attached. A pod can neither change the policies of its link
// nor attach or detach programs: the kernel takes both only through the host side.
func Open(index int) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("netkit"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_NETKIT_POLICY, nl.Uint32Attr(uint32(netlink.NETKIT_POLICY_FORWARD)))
	data.AddRtAttr(nl.IFLA_NETKIT_PEER_POLICY, nl.Uint32Attr(uint32(netlink.NETKIT_POLICY_FORWARD)))
	req.AddData(info)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("let packets pass netkit device %d: %w", index, err)
	}
	return nil
}
