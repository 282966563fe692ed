package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// profile has the instructions for each transaction by function.
type profile struct {
	scenario  string
	functions map[string]float64
}

func (p profile) sum() (sum float64) {
	for _, n := range p.functions {
		sum += n
	}
	return sum
}

// block is what plugin.c counts.
type block struct {
	address      uint64
	instructions int
}

// load reads the counts in a folder: two for each run, half of the runs being of node, the others of the scenario. The
// run with the fewest instructions counts, since others had something else in their way.
func load(dir, scenario string, transactions int) (profile, error) {
	symbols, err := readSymbols(filepath.Join(dir, "kallsyms"))
	if err != nil {
		return profile{}, err
	}
	var runs []profile
	for i := 0; ; i += 2 {
		before, err := readCounts(filepath.Join(dir, strconv.Itoa(i)))
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		after, failed := readCounts(filepath.Join(dir, strconv.Itoa(i+1)))
		if err := errors.Join(err, failed); err != nil {
			return profile{}, err
		}
		run := profile{scenario, map[string]float64{}}
		for b, n := range after {
			if more := n - before[b]; more > 0 {
				run.functions[symbols.at(b.address)] += float64(more) * float64(b.instructions) / float64(transactions)
			}
		}
		runs = append(runs, run)
	}
	if scenario != "node" {
		runs = runs[len(runs)/2:]
	}
	if len(runs) == 0 {
		return profile{}, fmt.Errorf("no run in %s was counted", dir)
	}
	return slices.MinFunc(runs, func(a, b profile) int { return cmp.Compare(a.sum(), b.sum()) }), nil
}

func readCounts(name string) (map[block]uint64, error) {
	counts := map[block]uint64{}
	err := eachLine(name, func(fields []string) error {
		if len(fields) != 3 {
			return fmt.Errorf("%d fields, want 3", len(fields))
		}
		address, bad1 := strconv.ParseUint(fields[0], 16, 64)
		instructions, bad2 := strconv.Atoi(fields[1])
		n, bad3 := strconv.ParseUint(fields[2], 10, 64)
		counts[block{address, instructions}] = n
		return errors.Join(bad1, bad2, bad3)
	})
	return counts, err
}

// symbols are the kernel's, by address.
type symbols []symbol

type symbol struct {
	address uint64
	name    string
}

// tag is the part of a program's name that differs between builds. A program may have no other name.
var tag = regexp.MustCompile(`^bpf_prog_[0-9a-f]{16}(_|$)`)

func readSymbols(name string) (list symbols, err error) {
	err = eachLine(name, func(fields []string) error {
		if len(fields) < 3 {
			return fmt.Errorf("%d fields, want at least 3", len(fields))
		}
		address, err := strconv.ParseUint(fields[0], 16, 64)
		list = append(list, symbol{address, tag.ReplaceAllString(fields[2], "bpf:")})
		return err
	})
	slices.SortFunc(list, func(a, b symbol) int { return cmp.Compare(a.address, b.address) })
	return list, err
}

// at returns the name of the function at an address.
func (s symbols) at(address uint64) string {
	i, found := slices.BinarySearchFunc(s, address, func(s symbol, a uint64) int { return cmp.Compare(s.address, a) })
	if !found {
		i--
	}
	if i < 0 {
		return "unknown"
	}
	return s[i].name
}

func eachLine(name string, fn func(fields []string) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		if err := fn(strings.Fields(lines.Text())); err != nil {
			return fmt.Errorf("%s: line %d: %w", name, n, err)
		}
	}
	return lines.Err()
}

// write shows one profile, or what the second takes beyond the first.
func write(w io.Writer, profiles []profile, top int) error {
	first, last := profiles[0], profiles[len(profiles)-1]
	if len(profiles) == 1 {
		first = profile{scenario: "nothing"}
	}
	names := map[string]bool{}
	for _, p := range profiles {
		for name := range p.functions {
			names[name] = true
		}
	}
	rows := slices.Collect(maps.Keys(names))
	more := func(name string) float64 { return last.functions[name] - first.functions[name] }
	slices.SortFunc(rows, func(a, b string) int {
		return cmp.Or(cmp.Compare(max(more(b), -more(b)), max(more(a), -more(a))), cmp.Compare(a, b))
	})
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "MORE\t%s\t%s\t  FUNCTION\n", strings.ToUpper(first.scenario), strings.ToUpper(last.scenario))
	fmt.Fprintf(t, "%.0f\t%.0f\t%.0f\t  all\n", last.sum()-first.sum(), first.sum(), last.sum())
	for _, name := range rows[:min(top, len(rows))] {
		fmt.Fprintf(t, "%.0f\t%.0f\t%.0f\t  %s\n", more(name), first.functions[name], last.functions[name], name)
	}
	return t.Flush()
}
