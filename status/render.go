package status

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"myelin/agent/feature"
	"myelin/bpf"
)

// Style is how a report is written.
type Style struct {
	Width   int  // columns of the terminal, at least 40 are used
	Color   bool // mark states by colour as well
	Verbose bool // every feature's reason, and all tables
}

// label is the width of the column of names.
const label = 22

// Render writes the report for people. It returns the error of w.
func (r *Report) Render(w io.Writer, s Style) error {
	p := &printer{style: s}
	p.style.Width = max(s.Width, 2*label)
	p.title(r)
	for _, f := range r.Features {
		p.feature(f)
	}
	if s.Verbose {
		p.devices(r.Devices)
		p.maps(r.Maps)
		p.tables(r.Tables)
		p.problems("Services that don't get all they ask", "myelin table show services", r.ServiceProblems)
		p.problems("Policies that are refused, or not in the kernel", "myelin policy list", r.PolicyProblems)
	}
	p.summary(r)
	_, err := io.WriteString(w, p.text.String())
	return err
}

type printer struct {
	style Style
	text  strings.Builder
}

// Colours of ECMA-48, section 8.3.117.
const (
	red    = "31"
	yellow = "33"
	faint  = "2"
	bold   = "1"
)

func (p *printer) color(code, text string) string {
	if !p.style.Color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p *printer) title(r *Report) {
	line := fmt.Sprintf("  myelin %s, kernel %s, up %s", r.Version, r.Kernel, r.Time.Sub(r.Began).Round(time.Second))
	p.text.WriteString(p.color(bold, r.Node) + line + "\n\n")
}

// feature is a line "NAME: CHOSEN", and lines about what is not as it could be.
func (p *printer) feature(f Feature) {
	chosen := f.Chosen
	mark := ""
	switch f.State {
	case Fallback:
		mark = p.color(yellow, "[fallback]") + " "
	case Broken:
		mark = p.color(red, "[broken]") + " "
	case Off:
		chosen = p.color(faint, chosen)
	}
	p.wrapped(fmt.Sprintf("%-*s", label, f.Name+":"), mark+chosen, label)
	code := yellow
	if f.State == Broken {
		code = red
	}
	for _, problem := range f.Problems {
		if rest, ok := strings.CutSuffix(problem, feature.SeeVerbose); ok && p.style.Verbose {
			problem = rest + " (listed below)"
		}
		p.wrapped(strings.Repeat(" ", label)+p.color(code, "- "), problem, label+2)
	}
	less := f.State == Fallback || f.State == Broken
	for _, v := range []struct {
		name, text string
		show       bool
	}{
		{"wanted", f.Wanted, p.style.Verbose || less},
		{"why", f.Why, p.style.Verbose},
		{"cost", f.Cost, p.style.Verbose || less},
	} {
		if v.show && v.text != "" {
			p.wrapped(strings.Repeat(" ", label)+p.color(faint, fmt.Sprintf("%-8s", v.name)), v.text, label+8)
		}
	}
}

// wrapped writes head and text; further lines begin at column indent.
func (p *printer) wrapped(head, text string, indent int) {
	p.text.WriteString(head)
	room := p.style.Width - indent
	for i, line := range Wrap(text, room) {
		if i > 0 {
			p.text.WriteString(strings.Repeat(" ", indent))
		}
		p.text.WriteString(line + "\n")
	}
}

// Wrap breaks text at blanks into lines of at most width columns; a longer word
// has a line of its own.
func Wrap(text string, width int) (lines []string) {
	line, used := "", 0
	for _, word := range strings.SplitAfter(strings.ReplaceAll(text, "\n", " "), " ") {
		n := columns(word)
		if used > 0 && used+columns(strings.TrimRight(word, " ")) > width {
			lines = append(lines, strings.TrimRight(line, " "))
			line, used = "", 0
		}
		line, used = line+word, used+n
	}
	return append(lines, strings.TrimRight(line, " "))
}

// columns counts what a terminal shows, without colour.
func columns(s string) int {
	n := utf8.RuneCountInString(s)
	for {
		begin := strings.Index(s, "\x1b[")
		if begin < 0 {
			return n
		}
		end := strings.IndexByte(s[begin:], 'm')
		if end < 0 {
			return n
		}
		n -= end + 1
		s = s[begin+end+1:]
	}
}

func (p *printer) table(title string, header []string, rows [][]string) {
	p.text.WriteString("\n" + p.color(bold, title) + "\n")
	t := tabwriter.NewWriter(&p.text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  "+strings.Join(header, "\t"))
	for _, row := range rows {
		fmt.Fprintln(t, "  "+strings.Join(row, "\t"))
	}
	t.Flush()
}

func (p *printer) devices(list []Device) {
	var rows [][]string
	for _, d := range list {
		hooks := strings.Join(d.Hooks, ",")
		for _, m := range d.Missing {
			hooks += " -" + m
		}
		for _, f := range d.Foreign {
			hooks += " +" + f
		}
		rows = append(rows, []string{d.Name, fmt.Sprint(d.Index), d.Kind, d.Driver, fmt.Sprint(d.MTU),
			orDash(strings.TrimSpace(hooks)), orDash(d.Why)})
	}
	p.table("Devices", []string{"NAME", "INDEX", "KIND", "DRIVER", "MTU", "HOOKS", "WHY"}, rows)
}

func (p *printer) maps(list []*bpf.Usage) {
	var rows [][]string
	for _, m := range list {
		entries, pressure := "-", "-"
		if m.Entries >= 0 {
			entries, pressure = fmt.Sprint(m.Entries), fmt.Sprintf("%.1f %%", 100*m.Pressure())
		}
		origin := m.Note
		if m.Adopted {
			origin = "adopted"
		}
		rows = append(rows, []string{m.Name, m.Type, entries, fmt.Sprint(m.Max), pressure, bytes(m.Bytes),
			orDash(origin)})
	}
	p.table("BPF Maps", []string{"NAME", "TYPE", "ENTRIES", "MAX", "PRESSURE", "LOCKED", "ORIGIN"}, rows)
}

func (p *printer) tables(list []Table) {
	var rows [][]string
	for _, t := range list {
		rows = append(rows, []string{t.Name, fmt.Sprint(t.Rows), fmt.Sprint(t.Done), fmt.Sprint(t.Pending),
			fmt.Sprint(t.Failed)})
	}
	p.table("Controllers", []string{"TABLE", "ROWS", "DONE", "PENDING", "FAILED"}, rows)
	for _, t := range list {
		for _, e := range t.Errors {
			p.wrapped("  "+t.Name+": ", p.color(red, e), 4)
		}
	}
}

// problems lists at most feature.MaxErrors; command shows the rest.
func (p *printer) problems(title, command string, list []string) {
	if len(list) == 0 {
		return
	}
	if len(list) >= maxErrors {
		title += fmt.Sprintf(" (the first %d; all: %s)", len(list), command)
	}
	p.text.WriteString("\n" + p.color(bold, title) + "\n")
	for _, text := range list {
		p.wrapped("  ", p.color(yellow, text), 4)
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (p *printer) summary(r *Report) {
	p.text.WriteString("\n")
	broken, fallbacks := r.in(Broken), r.in(Fallback)
	if len(broken) > 0 {
		p.wrapped(p.color(red, "Broken: "), strings.Join(broken, ", "), 8)
	}
	if len(fallbacks) > 0 {
		p.wrapped(p.color(yellow, "Fallback: "), strings.Join(fallbacks, ", "), 10)
	}
	if len(broken)+len(fallbacks) == 0 {
		p.text.WriteString("All is as wanted.\n")
	}
}
