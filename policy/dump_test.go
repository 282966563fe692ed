package policy

import (
	"fmt"
	"slices"
	"strings"
)

// dump is all that the kernel is to have, without numbers.
func dump(c *compiler) string {
	var lines []string
	name := func(d *peerID) string {
		text := fmt.Sprintf("%d %t", d.base.id, d.base.apiServer)
		var in []string
		for _, m := range d.members {
			in = append(in, m.source.key)
		}
		slices.Sort(in)
		return text + strings.Join(in, ",")
	}
	number := func(n uint32) string {
		if d := c.peers.byNumber[n]; d != nil {
			return name(d)
		}
		return fmt.Sprint(n)
	}
	for _, t := range c.targets {
		for dir, of := range t.sets {
			for family, s := range of {
				if s == nil {
					continue
				}
				line := fmt.Sprintf("endpoint %d %s %d: rest%s", t.slot, Direction(dir), family, rowsText(s.rest.rows))
				lines = append(lines, line)
				for d, class := range s.peers {
					lines = append(lines, fmt.Sprintf("endpoint %d %s %d: %s%s", t.slot, Direction(dir), family, name(d), rowsText(class.rows)))
				}
			}
		}
	}
	for p, cell := range c.space.cells.All() {
		if cell.number != noNumber {
			lines = append(lines, fmt.Sprintf("%s is %s", p, number(cell.number)))
		}
	}
	for p, o := range c.space.owned.All() {
		lines = append(lines, fmt.Sprintf("%s is %s", p, number(o.number)))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func rowsText(rows []row) (out string) {
	for _, r := range rows {
		out += fmt.Sprintf(" %d:%d/%d=%s", r.proto, r.port, r.bits, r.ruling)
	}
	return out
}
