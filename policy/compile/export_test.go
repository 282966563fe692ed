package compile

import (
	"fmt"
	"slices"
	"strings"

	"myelin/policy"
)

// Dump is all that the kernel is to have, without numbers.
func Dump(c *Compiler) string {
	var lines []string
	name := func(d *Identity) string {
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
	for _, t := range c.endpoints {
		for dir, of := range t.Sets {
			for family, s := range of {
				if s == nil {
					continue
				}
				line := fmt.Sprintf("endpoint %d %s %d: rest%s", t.Slot, policy.Direction(dir), family,
					rowsText(s.Default.Verdicts))
				lines = append(lines, line)
				for d, class := range s.Peers {
					lines = append(lines, fmt.Sprintf("endpoint %d %s %d: %s%s", t.Slot, policy.Direction(dir), family,
						name(d),
						rowsText(class.Verdicts)))
				}
			}
		}
	}
	for p, cell := range c.space.cells.All() {
		if cell.number != NoIdentity {
			lines = append(lines, fmt.Sprintf("%s is %s", p, number(cell.number)))
		}
	}
	for p, o := range c.space.owned.All() {
		if o.base == c.peers.noLabels {
			lines = append(lines, "a selector is "+number(o.number))
			continue
		}
		lines = append(lines, fmt.Sprintf("%s is %s", p, number(o.number)))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func rowsText(rows []PortVerdict) (out string) {
	for _, r := range rows {
		out += fmt.Sprintf(" %d:%d/%d=%s", r.Proto, r.Port, r.Bits, r.Verdict)
	}
	return out
}
