package flow

import (
	"fmt"
	"net/netip"
	"strconv"

	"myelin/bpf"
	"myelin/event"
)

// Path is a decision that the datapath keeps, with names.
type Path struct {
	Src event.Party `json:"source"`
	Dst event.Party `json:"destination"`
	In  string      `json:"in"` // the link that packets come in by
	// Action is "pod", "wire", "tunnel" or "stack".
	Action string `json:"action"`
	Out    string `json:"out,omitempty"` // the device or pod link; of a tunnel: nothing
	// Via is the node at the tunnel's other end.
	Via netip.Addr `json:"via,omitzero"`
	// Masquerade is the address that the pod gets on the wire.
	Masquerade netip.Addr `json:"masquerade,omitzero"`
	MTU        uint16     `json:"mtu,omitempty"` // bytes of layer 3, 0: not checked
	// Fresh: the next packet follows it. Else it is decided again.
	Fresh bool `json:"fresh"`
}

// actionText is indexed by enum path_action.
func actionText(a uint8) string {
	switch bpf.DatapathPathAction(a) {
	case bpf.DatapathPathActionPATH_POD:
		return "pod"
	case bpf.DatapathPathActionPATH_WIRE:
		return "wire"
	case bpf.DatapathPathActionPATH_TUNNEL:
		return "tunnel"
	case bpf.DatapathPathActionPATH_STACK:
		return "stack"
	case bpf.DatapathPathActionPATH_RESOLVE:
		return "resolve"
	}
	return "none"
}

// Paths calls fn for each forwarding cache entry until it returns false.
func Paths(d *bpf.Datapath, names event.Names, clock Clock, fn func(*Path) bool) error {
	epochs := epochs{d: d, known: map[uint16]uint32{}}
	err := bpf.CachedPaths(d.Paths, func(_ int, _ uint32, p *bpf.DatapathCachedPath) bool {
		fresh := p.Path.Epoch == epochs.sum(p.Path.SrcSlot, p.Path.DstSlot) &&
			int32(p.Path.Expires-uint32(clock.Ticks)) >= 0
		return fn(namePath(names, p, fresh))
	})
	if err == nil {
		err = epochs.err
	}
	if err != nil {
		return fmt.Errorf("read paths: %w", err)
	}
	return nil
}

func namePath(names event.Names, k *bpf.DatapathCachedPath, fresh bool) *Path {
	p := &k.Path
	out := &Path{
		Src: PartyOf(names, netip.AddrPortFrom(k.Src.Netip(), 0)), Dst: PartyOf(names,
			netip.AddrPortFrom(k.Dst.Netip(), 0)),
		In: link(names, p.InIfindex&^uint32(bpf.DatapathPathMarkPATH_MARKS)), Action: actionText(p.Action),
		Via: p.Via.Netip(), MTU: p.Mtu, Fresh: fresh,
	}
	if p.Ifindex != 0 {
		out.Out = link(names, p.Ifindex)
	}
	if p.Flags&uint8(bpf.DatapathPathFlagPATH_MASQUERADE) != 0 {
		out.Masquerade = k.Snat.Netip()
	}
	return out
}

func link(names event.Names, index uint32) string {
	if name := names.Link(int(index)); name != "" {
		return name
	}
	return "interface " + strconv.FormatUint(uint64(index), 10)
}

// epochs reads each slot's once.
type epochs struct {
	d     *bpf.Datapath
	known map[uint16]uint32
	err   error
}

func (e *epochs) of(slot uint16) uint32 {
	n, ok := e.known[slot]
	if !ok && e.err == nil {
		n, e.err = bpf.EpochOf(e.d.Epochs, slot)
		e.known[slot] = n
	}
	return n
}

// sum is epoch_sum of endpoint.h.
func (e *epochs) sum(src, dst uint16) uint32 {
	return e.of(0) + e.of(src) + e.of(dst)
}

// TableHeader names the columns of TableRow.
func (*Path) TableHeader() []string {
	return []string{"Source", "Destination", "In", "Action", "Out", "Via", "Masquerade", "MTU", "Fresh"}
}

// TableRow is the row as text.
func (p *Path) TableRow() []string {
	text := func(a netip.Addr) string {
		if !a.IsValid() {
			return "-"
		}
		return a.String()
	}
	out := p.Out
	if out == "" {
		out = "-"
	}
	return []string{
		p.Src.String(), p.Dst.String(), p.In, p.Action, out, text(p.Via), text(p.Masquerade), strconv.Itoa(int(p.MTU)),
		strconv.FormatBool(p.Fresh),
	}
}
