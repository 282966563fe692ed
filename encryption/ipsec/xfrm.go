package ipsec

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"myelin/route"
)

// mark is the interface identifier (if_id) and the reqid of all states and policies: those with both are ours.
const mark = 0x6d79656c

// replayWindow is by how many packets one may be late (RFC 4303, section 3.4.3), the most that the kernel takes: CPUs
// take numbers in turn and encrypt at once, and one that is held up meanwhile, as a hypervisor does it, would lose its
// packet. With extended sequence numbers that is counted as XfrmInStateProtoError. Cilium's is 1,024.
const replayWindow = 4096

// reqid is mark as the netlink package has it.
const reqid = mark

// state is a wanted state.
type state struct {
	from, to netip.Addr
	keys

	sends bool // packets to the peer are encrypted with it
}

// id is what the kernel knows states by.
type id struct {
	to  netip.Addr
	spi uint32
}

func (s state) id() id { return id{s.to, s.SPI} }

func (s state) String() string { return fmt.Sprintf("state %s→%s with SPI %#x", s.from, s.to, s.SPI) }

// ours reports whether a state of the kernel was made by an agent.
func ours(x *netlink.XfrmState) bool { return x.Ifid == mark && x.Reqid == reqid }

// find is the kernel's state with that identifier, nil if there is none.
func find(k *route.Kernel, i id) (*netlink.XfrmState, error) {
	x, err := k.XfrmStateGet(&netlink.XfrmState{Dst: i.to.AsSlice(), Spi: int(i.spi), Proto: netlink.XFRM_PROTO_ESP,
		Ifid: mark})
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read state with SPI %#x: %w", i.spi, err)
	}
	return x, nil
}

// matches reports whether a state of the kernel is the wanted one, with its key.
func (s state) matches(x *netlink.XfrmState) bool {
	from, ok := netip.AddrFromSlice(x.Src)
	return ok && from.Unmap() == s.from && ours(x) && x.Mode == netlink.XFRM_MODE_TUNNEL && x.Aead != nil &&
		x.Aead.Name == algorithm && string(x.Aead.Key) == string(s.Key) && x.Aead.ICVLen == s.ICV
}

// add makes the state. The netlink package can't ask for states that carry both families (XFRM_STATE_AF_UNSPEC), as
// those of tunnels must, so the request is written here.
func (s state) add(k *route.Kernel) error {
	family := unix.AF_INET
	if s.to.Is6() {
		family = unix.AF_INET6
	}
	info := &nl.XfrmUsersaInfo{Family: uint16(family), Mode: uint8(netlink.XFRM_MODE_TUNNEL), Reqid: reqid,
		Flags: nl.XFRM_STATE_AF_UNSPEC | nl.XFRM_STATE_ESN}
	info.Id.Daddr.FromIP(s.to.AsSlice())
	info.Saddr.FromIP(s.from.AsSlice())
	info.Id.Proto = uint8(netlink.XFRM_PROTO_ESP)
	info.Id.Spi = nl.Swap32(s.SPI)
	info.Lft = nl.XfrmLifetimeCfg{SoftByteLimit: nl.XFRM_INF, HardByteLimit: nl.XFRM_INF,
		SoftPacketLimit: nl.XFRM_INF, HardPacketLimit: nl.XFRM_INF}
	aead := nl.XfrmAlgoAEAD{AlgKeyLen: uint32(len(s.Key) * 8), AlgICVLen: uint32(s.ICV), AlgKey: s.Key}
	copy(aead.AlgName[:], algorithm)
	esn := nl.XfrmReplayStateEsn{BmpLen: replayWindow / 32, ReplayWindow: replayWindow}
	request := nl.NewNetlinkRequest(nl.XFRM_MSG_NEWSA, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	request.AddData(info)
	request.AddData(nl.NewRtAttr(nl.XFRMA_ALG_AEAD, aead.Serialize()))
	request.AddData(nl.NewRtAttr(nl.XFRMA_REPLAY_ESN_VAL, esn.Serialize()))
	request.AddData(nl.NewRtAttr(nl.XFRMA_IF_ID, nl.Uint32Attr(mark)))
	err := k.Do(func() error {
		_, err := request.Execute(unix.NETLINK_XFRM, 0)
		return err
	})
	switch {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.ENOENT):
		return fmt.Errorf("make %s: the kernel has no ESP with %s (modules esp4, esp6, gcm): %w", s, algorithm, err)
	case err != nil:
		return fmt.Errorf("make %s: %w", s, err)
	}
	return nil
}

// remove removes the state, if it is there.
func (i id) remove(k *route.Kernel) error {
	err := k.XfrmStateDel(&netlink.XfrmState{Dst: i.to.AsSlice(), Spi: int(i.spi), Proto: netlink.XFRM_PROTO_ESP,
		Ifid: mark})
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove state with SPI %#x: %w", i.spi, err)
	}
	return nil
}

// policy is a wanted policy: packets to the prefix leave encrypted by the state with the SPI, or those from it must
// have come so from the peer.
type policy struct {
	dir      netlink.Dir
	prefix   netip.Prefix
	from, to netip.Addr // of the outer header
	spi      uint32     // of dir out; 0: any
}

// policyID is what the kernel knows policies by.
type policyID struct {
	dir    netlink.Dir
	prefix netip.Prefix
}

func (p policy) id() policyID { return policyID{p.dir, p.prefix} }

// selector is the policy without its template.
func (i policyID) selector() *netlink.XfrmPolicy {
	bits := i.prefix.Addr().BitLen()
	all := &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}
	of := &net.IPNet{IP: i.prefix.Addr().AsSlice(), Mask: net.CIDRMask(i.prefix.Bits(), bits)}
	// The longest prefix counts: the lowest number.
	x := &netlink.XfrmPolicy{Dir: i.dir, Ifid: mark, Src: of, Dst: all, Priority: mark - i.prefix.Bits()}
	if i.dir == netlink.XFRM_DIR_OUT {
		x.Src, x.Dst = all, of
	}
	return x
}

// set makes the policy, or replaces its template as one step.
func (p policy) set(k *route.Kernel) error {
	x := p.id().selector()
	x.Tmpls = []netlink.XfrmPolicyTmpl{{Src: p.from.AsSlice(), Dst: p.to.AsSlice(), Proto: netlink.XFRM_PROTO_ESP,
		Mode: netlink.XFRM_MODE_TUNNEL, Reqid: reqid, Spi: int(p.spi)}}
	if err := k.XfrmPolicyUpdate(x); err != nil {
		return fmt.Errorf("set policy %s for %s: %w", p.dir, p.prefix, err)
	}
	return nil
}

// remove removes the policy, if it is there.
func (i policyID) remove(k *route.Kernel) error {
	if err := k.XfrmPolicyDel(i.selector()); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove policy %s for %s: %w", i.dir, i.prefix, err)
	}
	return nil
}
