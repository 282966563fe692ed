package tune

import (
	"fmt"
	"io"
	"strings"

	"myelin/status"
)

// Render writes what differs for people, in the order of the list, and how many settings are as recommended; all: those
// too. It returns the error of w.
func Render(w io.Writer, entries []Entry, width int, all bool) error {
	const indent = 4
	width = max(width, 40)
	var b strings.Builder
	good, open, manual := 0, 0, 0
	for _, e := range entries {
		switch {
		case !e.Differs():
			good++
			if all {
				fmt.Fprintf(&b, "%s: %s is %s\n", e.Area, e.Name, e.Current)
			}
			continue
		case e.Kind == Manual:
			manual++
		default:
			open++
		}
		fmt.Fprintf(&b, "%s: %s is %s, recommended: %s\n", e.Area, e.Name, e.Current, e.Recommended)
		for _, line := range [][2]string{{"why", e.Reason}, {"brings", e.Effect}, {"do", e.Do}, {"undo", e.Undo}} {
			if line[1] == "" {
				continue
			}
			for i, text := range status.Wrap(line[1], width-indent-8) {
				name := ""
				if i == 0 {
					name = line[0] + ":"
				}
				fmt.Fprintf(&b, "%*s%-8s%s\n", indent, "", name, text)
			}
		}
	}
	fmt.Fprintf(&b, "%d settings are as recommended, %d can be applied (--apply), %d are for people to change\n",
		good, open, manual)
	_, err := io.WriteString(w, b.String())
	return err
}
