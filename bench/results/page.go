package results

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"text/template"
)

// Page is what the template of BENCHMARKS.md sees.
type Page struct {
	results []Result
	budgets []Budget
}

// NewPage makes a page of results and their budgets.
func NewPage(list []Result, budgets []Budget) Page { return Page{list, budgets} }

// WriteFile renders the template at templatePath into path.
func (p Page) WriteFile(templatePath, path string) error {
	page, err := template.ParseFiles(templatePath)
	if err != nil {
		return fmt.Errorf("read the template of %s: %w", path, err)
	}
	var text bytes.Buffer
	if err := page.Execute(&text, p); err != nil {
		return fmt.Errorf("render %s: %w", path, err)
	}
	if err := replaceFile(path, text.Bytes()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Kernels lists the kernels that results of one way of measuring come from.
func (p Page) Kernels(way string) string {
	var kernels []string
	for _, r := range p.results {
		if strings.HasPrefix(r.Name, way+"/") && !slices.Contains(kernels, r.Kernel) {
			kernels = append(kernels, r.Kernel)
		}
	}
	if len(kernels) == 0 {
		return "not measured"
	}
	return strings.Join(kernels, ", ")
}

// Traffic is a Markdown table of one way of measuring ("vm", "machine"): a row for each path, a column for each test,
// each cell the ratio to node→node, its budget and the value.
func (p Page) Traffic(way string, tests ...string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "| path | %s |\n|---|%s\n", strings.Join(tests, " | "), strings.Repeat("---|", len(tests)))
	for _, path := range p.paths(way, tests) {
		text.WriteString("| " + path)
		for _, test := range tests {
			text.WriteString(" | " + p.cell(way+"/"+path+"/"+test))
		}
		text.WriteString(" |\n")
	}
	return text.String()
}

// paths are those that have a result or a budget of one of the tests; node, the baseline, is first.
func (p Page) paths(way string, tests []string) []string {
	var paths []string
	add := func(name string) {
		part := strings.Split(name, "/")
		if len(part) == 3 && part[0] == way && slices.Contains(tests, part[2]) && !slices.Contains(paths, part[1]) {
			paths = append(paths, part[1])
		}
	}
	for _, r := range p.results {
		add(r.Name)
	}
	for _, b := range p.budgets {
		add(b.Name)
	}
	slices.SortFunc(paths, func(a, b string) int {
		if first := strings.HasPrefix(a, "node"); first != strings.HasPrefix(b, "node") {
			if first {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	return paths
}

func (p Page) cell(name string) string {
	text := "–"
	if r, ok := find(p.results, name); ok {
		text = measured(r)
	}
	if bound := p.bound(name); bound != "" {
		text += ", budget " + bound
	}
	return text
}

func (p Page) bound(name string) string {
	var bounds []string
	for _, b := range p.budgets {
		if b.Name == name {
			bounds = append(bounds, b.String())
		}
	}
	return strings.Join(bounds, ", ")
}

// Others is a Markdown table of the measurements that are not traffic: those with two parts in their name.
func (p Page) Others() string {
	var text strings.Builder
	text.WriteString("| what | measured | budget | kernel |\n|---|---|---|---|\n")
	names := map[string]Result{}
	for _, b := range p.budgets {
		names[b.Name] = Result{}
	}
	for _, r := range p.results {
		names[r.Name] = r
	}
	for _, name := range sortedKeys(names) {
		if strings.Count(name, "/") != 1 {
			continue
		}
		value, kernel := "–", "–"
		if r := names[name]; r.Name != "" {
			value, kernel = measured(r), r.Kernel
		}
		fmt.Fprintf(&text, "| %s | %s | %s | %s |\n", name, value, p.bound(name), kernel)
	}
	return text.String()
}

// Print writes results as an aligned table.
func Print(w io.Writer, list []Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tVALUE\tNODE TO NODE\tRATIO")
	for _, r := range list {
		baseline, ratio := "-", "-"
		if r.Ratio != 0 {
			baseline, ratio = amount(Result{Value: r.Baseline, Unit: r.Unit}), fmt.Sprintf("%.3f", r.Ratio)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", r.Name, amount(r), baseline, ratio)
	}
	return table.Flush()
}

// measured is a value, after its ratio if it has one.
func measured(r Result) string {
	if r.Ratio != 0 {
		return fmt.Sprintf("**%.3f** (%s)", r.Ratio, amount(r))
	}
	return amount(r)
}

// amount is a value with its unit in at least three digits that matter.
func amount(r Result) string {
	precision := 0
	if r.Value < 100 && r.Value != float64(int(r.Value)) {
		precision = 2
	}
	return strings.TrimSpace(strconv.FormatFloat(r.Value, 'f', precision, 64) + " " + r.Unit)
}

func sortedKeys(m map[string]Result) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
