package oracle

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
)

// direct makes a segment of an open connection, in its client's name, with the option of direct server return.
func (g *Generator) direct(d *draft) bool {
	f := pick(g.R, g.Open...)
	d.f, d.to = 6, g.Model.place(f.Dst)
	if f.Src.Is4() {
		d.f = 4
	}
	here := !d.From.Pod && d.From.Node != "" && d.to != nil && d.From.Node == d.to.Node
	if d.to == nil || d.From == d.to || here {
		return false
	}
	flags := pick(g.R, "S", "A", "PA")
	d.Kind, d.Begins, d.Claimed = "tcp "+flags+" with the option of direct server return", true, f.Src
	line := fmt.Sprintf("ip%d %s > %s | tcp %d > %d %s", d.f, f.Src, f.Dst, f.SPort, f.DPort, flags)
	line += fmt.Sprintf(" seq %d ack %d | hex:%s", g.R.Uint32(), g.R.Uint32(), hex.EncodeToString(tagOf(d.N)))
	g.parse(d, line)
	for range 8 { // some Services are of the other family
		if d.Direct {
			break
		}
		if d.f == 4 {
			g.direct4(d)
		} else {
			g.direct6(d)
		}
	}
	d.Real, d.packets = []Flow{f}, [][]byte{slices.Clone(d.ip)}
	g.frames(d)
	return true
}

// direct4 adds the option of direct server return.
func (g *Generator) direct4(d *draft) {
	if len(g.Services) == 0 {
		return
	}
	if s := pick(g.R, g.Services...); s.Addr().Is4() {
		option := binary.BigEndian.AppendUint16([]byte{0x9a, 8}, s.Port())
		g.insert4(d, append(option, s.Addr().AsSlice()...))
		d.Direct = true
	}
}

func (g *Generator) direct6(d *draft) {
	if len(g.Services) == 0 {
		return
	}
	if s := pick(g.R, g.Services...); s.Addr().Is6() {
		option := append([]byte{0, 2, 0x1b, 18}, s.Addr().AsSlice()...)
		g.insert6(d, destOptions, append(binary.BigEndian.AppendUint16(option, s.Port()), 1, 0))
		d.Direct = true
	}
}
