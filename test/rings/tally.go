package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// tally counts tests over all rings.
type tally struct {
	passed, failed, skipped int
	// ran says of each test by package and name whether it ran in any ring.
	ran map[string]bool
	// took has the tests since slowest was asked, and those within them: one whose parts run in parallel takes no time
	// by itself.
	took []timed
}

// timed is a test and how long it took, in seconds.
type timed struct {
	name    string
	seconds float64
}

// slowest is a line of the five tests that took longest since it was asked last; empty if there was none.
func (t *tally) slowest() string {
	slices.SortFunc(t.took, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	var words []string
	for _, one := range t.took[:min(len(t.took), 5)] {
		words = append(words, fmt.Sprintf("%s %.0f s", one.name, one.seconds))
	}
	t.took = nil
	if len(words) == 0 {
		return ""
	}
	return "   slowest: " + strings.Join(words, ", ") + "\n"
}

func newTally() tally { return tally{ran: map[string]bool{}} }

// add counts what another tally has counted.
func (t *tally) add(other tally) {
	t.passed, t.failed, t.skipped = t.passed+other.passed, t.failed+other.failed, t.skipped+other.skipped
	for key, ran := range other.ran {
		t.ran[key] = t.ran[key] || ran
	}
	t.took = append(t.took, other.took...)
}

// event is a line of test2json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// read counts the events of in. Output of a test is shown when it failed; lines that are no events always are. With
// packages, the end of each package is a line of its own.
func (t *tally) read(in io.Reader, out io.Writer, where string, packages bool) error {
	held := map[string][]string{}
	failedIn := map[string]int{}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(out, lines.Text())
			continue
		}
		key := e.Package + " " + e.Test
		switch {
		case e.Action == "build-output":
			fmt.Fprint(out, e.Output)
		case e.Action == "output":
			held[key] = append(held[key], e.Output)
		case e.Test == "":
			t.endPackage(e, out, where, packages, failedIn[e.Package], held[key])
		default:
			t.endTest(e, out, where, held[key])
			if e.Action == "fail" {
				failedIn[e.Package]++
			}
			if e.Action == "pass" || e.Action == "fail" || e.Action == "skip" {
				delete(held, key)
			}
		}
	}
	return lines.Err()
}

func (t *tally) endTest(e event, out io.Writer, where string, held []string) {
	key := e.Package + " " + e.Test
	if e.Elapsed > 0 && strings.Count(e.Test, "/") < 2 {
		t.took = append(t.took, timed{where + " " + e.Test, e.Elapsed})
	}
	switch e.Action {
	case "pass":
		t.passed++
		t.ran[key] = true
	case "skip":
		t.skipped++
		t.ran[key] = t.ran[key]
	case "fail":
		t.failed++
		t.ran[key] = true
		fmt.Fprintf(out, "FAIL [%s] %s %s\n%s", where, e.Package, e.Test, strings.Join(held, ""))
	}
}

// endPackage counts a package that failed with no failed test (it didn't build, or its process died) as one failure.
func (t *tally) endPackage(e event, out io.Writer, where string, packages bool, failed int, held []string) {
	if e.Action == "fail" && failed == 0 {
		t.failed++
		fmt.Fprintf(out, "FAIL [%s] %s\n%s", where, e.Package, strings.Join(held, ""))
	}
	if packages && (e.Action == "pass" || e.Action == "fail") {
		word := map[string]string{"pass": "ok  ", "fail": "FAIL"}[e.Action]
		fmt.Fprintf(out, "%s %s %.1fs\n", word, e.Package, e.Elapsed)
	}
}

// failNeverRun counts each test that was skipped in every ring as a failure: such a test proves nothing anywhere.
func (t *tally) failNeverRun(out io.Writer) {
	for _, key := range slices.Sorted(maps.Keys(t.ran)) {
		if !t.ran[key] {
			t.failed++
			fmt.Fprintf(out, "FAIL %s: skipped in every ring\n", key)
		}
	}
}

func (t *tally) summary() string { return fmt.Sprintf("%d passed, %d failed", t.passed, t.failed) }
