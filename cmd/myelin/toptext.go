package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"myelin/hubble/printer"
	"myelin/service/stats"
)

// topText is a view as text. Services and backends without traffic and flows are left out, unless all are to be shown.
func topText(v *stats.View, by string, all, wide bool) string {
	lines := [][]string{{"Service", "State", "Requests/s", "Replies/s", "Bytes in/s", "Bytes out/s", "New flows/s",
		"Flows"}, topLine("total", "", &v.Total)}
	if wide {
		lines[0], lines[1] = append(lines[0], "Node"), append(lines[1], "")
	}
	for _, s := range v.Services {
		if !all && s.Idle() {
			continue
		}
		name := s.Service
		if name == "" {
			name = "others"
		}
		lines = append(lines, topLine(name, "", &s.Rate))
		for _, b := range s.Backends {
			if !all && b.Idle() {
				continue
			}
			line := topLine("  "+b.Backend, b.State, &b.Rate)
			if wide {
				line = append(line, printer.Printable(b.Node))
			}
			lines = append(lines, line)
		}
	}
	return fmt.Sprintf("%s  mean of %.1fs, by %s\n%s", v.Time.Format("15:04:05"), v.Seconds, by, aligned(lines, 2, 8))
}

func topLine(name, state string, r *stats.Rate) []string {
	flows := "-"
	if r.Flows != nil {
		flows = strconv.Itoa(*r.Flows)
	}
	return []string{printer.Printable(name), printer.Printable(state),
		rateText(r.Requests.Packets), rateText(r.Replies.Packets),
		rateText(r.Requests.Bytes), rateText(r.Replies.Bytes), rateText(r.NewFlows), flows}
}

// rateText is "0", "0.5", "123" or "1.2k", with decimal units.
func rateText(v float64) string {
	unit := 0
	const units = "kMGTPE"
	for v >= 999.5 && unit < len(units) {
		v /= 1000
		unit++
	}
	switch {
	case v == 0:
		return "0"
	case unit > 0:
		return strconv.FormatFloat(v, 'f', 1, 64) + units[unit-1:unit]
	case v < 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// aligned pads cells to columns, those from first to before end to the right.
func aligned(lines [][]string, first, end int) string {
	var widths []int
	for _, line := range lines {
		widths = append(widths, make([]int, max(0, len(line)-len(widths)))...)
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, line := range lines {
		cells := slices.Clone(line)
		for i, cell := range cells {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i >= first && i < end {
				cells[i] = pad + cell
			} else {
				cells[i] = cell + pad
			}
		}
		b.WriteString(strings.TrimRight(strings.Join(cells, "   "), " ") + "\n")
	}
	return b.String()
}
