package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// test is a row of tests.txt.
type test struct {
	ring, name string
	seconds    float64
	// core is the part of the test that make test runs: "-" none, "all", or a pattern of its subtests.
	core    string
	folders []string // a change in one of them touches the test
	why     string
}

// tests are all of the lab ring, and those of the unit ring that take long.
type tests []test

// readTests reads rows of six columns; the last one is text.
func readTests(path string) (list tests, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		row, err := readTest(line)
		if err != nil {
			return nil, fmt.Errorf("read %s: %q: %w", path, line, err)
		}
		if slices.ContainsFunc(list, func(t test) bool { return t.name == row.name }) {
			return nil, fmt.Errorf("read %s: %s has two rows", path, row.name)
		}
		list = append(list, row)
	}
	return list, nil
}

func readTest(line string) (t test, err error) {
	words := strings.Fields(line)
	if len(words) < 6 {
		return t, fmt.Errorf("%d columns, want RING TEST SECONDS CORE FOLDERS WHY", len(words))
	}
	t = test{ring: words[0], name: words[1], core: words[3], why: strings.Join(words[5:], " ")}
	if words[4] != "-" {
		t.folders = strings.Split(words[4], ",")
	}
	if t.ring != lab && t.ring != unit {
		return t, fmt.Errorf("ring %q: lab or unit", t.ring)
	}
	if t.ring == unit && t.core != "-" {
		return t, fmt.Errorf("core %q: a test of the unit ring has a row if it isn't in the core", t.core)
	}
	if t.seconds, err = strconv.ParseFloat(words[2], 64); err != nil || t.seconds < 0 {
		return t, fmt.Errorf("seconds %q: want a number", words[2])
	}
	return t, nil
}

func (all tests) of(ring string) (list tests) {
	for _, t := range all {
		if t.ring == ring {
			list = append(list, t)
		}
	}
	return list
}

// slowUnit is a pattern of the unit ring's tests that the core leaves out.
func (all tests) slowUnit() string { return all.of(unit).pattern() }

// pattern is one of whole tests.
func (all tests) pattern() string {
	var names []string
	for _, t := range all {
		names = append(names, t.name)
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

// coreLab is a pattern of what the core has of the lab ring. One level's alternatives are in parentheses, levels are
// parted by "/".
func (all tests) coreLab() string {
	var patterns []string
	for _, t := range all.of(lab) {
		switch t.core {
		case "-":
		case "all":
			patterns = append(patterns, "^"+t.name+"$")
		default:
			patterns = append(patterns, "^"+t.name+"$/"+t.core)
		}
	}
	return strings.Join(patterns, "|")
}

// outsideCore are tests of the lab ring that the core doesn't have, or not whole.
func (all tests) outsideCore() (list tests) {
	for _, t := range all.of(lab) {
		if t.core != "all" {
			list = append(list, t)
		}
	}
	return list
}

// expected is how long the tests take: those of the lab wait most of the time, and four run at once where they may.
func (all tests) expected() float64 {
	sum := 0.0
	for _, t := range all {
		sum += t.seconds
	}
	return sum
}

// chunks splits the tests into n lists that take equally long.
func (all tests) chunks(n int) []tests {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b test) int { return int(b.seconds - a.seconds) })
	lists := make([]tests, n)
	for _, t := range sorted {
		least := slices.MinFunc(lists, func(a, b tests) int { return int(a.expected() - b.expected()) })
		i := slices.IndexFunc(lists, func(l tests) bool { return l.expected() == least.expected() })
		lists[i] = append(lists[i], t)
	}
	return lists
}

// touched reports whether a changed file is in one of the folders, or is one of them; "*" is any.
func touched(folders, changed []string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		return slices.ContainsFunc(changed, func(file string) bool {
			return folder == "*" || file == folder || strings.HasPrefix(file, folder+"/")
		})
	})
}
