package doctor

import (
	"fmt"
	"io"
	"strings"

	"myelin/doctor/check"
	"myelin/status"
)

// Style is how findings are written.
type Style struct {
	Width int  // columns of the terminal, at least 40 are used
	Color bool // mark levels by colour as well
	Quiet bool // leave out what is OK
}

// Columns of level and area.
const (
	levelColumn = 6
	areaColumn  = 11
	indent      = levelColumn + areaColumn
)

// Render writes findings for people, one a paragraph, and a count of each level.
// It returns the error of w.
func Render(w io.Writer, findings []check.Finding, s Style) error {
	width := max(s.Width, 2*indent) - indent
	var b strings.Builder
	counts := map[check.Level]int{}
	for _, f := range findings {
		counts[f.Level]++
		if s.Quiet && f.Level == check.OK {
			continue
		}
		b.WriteString(s.level(f.Level) + fmt.Sprintf("%-*s", areaColumn, f.Area))
		lines := status.Wrap(f.What, width)
		if f.Level != check.OK {
			lines = append(lines, hanging("why", f.Why, width)...)
			lines = append(lines, hanging("do", f.Do, width)...)
		}
		b.WriteString(strings.Join(lines, "\n"+strings.Repeat(" ", indent)) + "\n")
	}
	fmt.Fprintf(&b, "\n%d OK, %d INFO, %d WARN, %d FAIL\n", counts[check.OK], counts[check.Info],
		counts[check.Warn], counts[check.Fail])
	_, err := io.WriteString(w, b.String())
	return err
}

// hanging is text with a name in front, or nothing.
func hanging(name, text string, width int) []string {
	if text == "" {
		return nil
	}
	const column = 5
	lines := status.Wrap(text, width-column)
	for i, l := range lines {
		head := ""
		if i == 0 {
			head = name + ":"
		}
		lines[i] = fmt.Sprintf("%-*s", column, head) + l
	}
	return lines
}

// level is the level in its column, in the colours of ECMA-48, section 8.3.117.
func (s Style) level(l check.Level) string {
	text := fmt.Sprintf("%-*s", levelColumn, l)
	code := map[check.Level]string{check.OK: "32", check.Warn: "33", check.Fail: "31"}[l]
	if !s.Color || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
