package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// ran is a ring or a piece that has run.
type ran struct {
	name         string
	took, budget time.Duration // 0: no budget
	failed       bool
}

// ring is what one can ask for, and how long it may take on two idle cores.
type ring struct {
	name, command, what string
	budget              time.Duration // of all of it, with what it needs built
	core                time.Duration // of its part in make test, beside the other rings; 0 if it has none
	whole               bool          // that part is all of it
}

func rings() []ring {
	return []ring{
		{style, "go test ./style", "how the tree looks", 30 * time.Second, time.Minute, true},
		{unit, "make test-unit", "all rounds of what make test shortens", 5 * time.Minute, 7 * time.Minute, false},
		{packet, "make test-packet", "packets through the programs", time.Minute, 5 * time.Minute, true},
		{lab, "make test-lab", "every mode and family, floods, churn, the oracle", 10 * time.Minute, 8 * time.Minute,
			false},
		{vm, "make test-vm", "packet and lab on kernels 6.12 and 5.10", 30 * time.Minute, 0, false},
		{kube, "make test-kube", "with a real API server, after a build of 13 minutes", 3 * time.Minute, 0, false},
		{cluster, "make test-cluster", "real kubelets, after a build of 12 minutes", 12 * time.Minute, 0, false},
		{"ui", "make test-ui", "the web page in a browser", 5 * time.Minute, 0, false},
		{"generate", "make generate-check", "committed generated files are fresh", time.Minute, 0, false},
		{"fuzz", "make fuzz", "every fuzz target for 10 s", 5 * time.Minute, 0, false},
		{"all", "make test-all", "everything", time.Hour, 0, false},
	}
}

// coreRings are those that make test has something of.
func coreRings() (names []string) {
	for _, r := range rings() {
		if r.core > 0 {
			names = append(names, r.name)
		}
	}
	return names
}

func budgetOf(name string, core bool) time.Duration {
	for _, r := range rings() {
		if r.name == name && core {
			return r.core
		}
		if r.name == name {
			return r.budget
		}
	}
	return 0
}

// writeTable prints how long each ring or piece took, and how long all did, some of them side by side. One that took
// longer than its budget is marked, but doesn't fail: a machine may be busy.
func (r *runner) writeTable() {
	if len(r.took) == 0 {
		return
	}
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nRING\tTOOK\tBUDGET\tOUTCOME")
	for _, one := range r.took {
		outcome := "passed"
		if one.failed {
			outcome = "FAILED"
		}
		if one.budget > 0 && one.took > one.budget {
			outcome += ", over its budget"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", one.name, clock(one.took.Seconds()), clock(one.budget.Seconds()), outcome)
	}
	fmt.Fprintf(w, "all\t%s\t\t\n", clock(time.Since(r.begin).Seconds()))
	_ = w.Flush() // it is standard output
}

// writeOthers names what make test doesn't run.
func writeOthers(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nNOT RUN BY make test\tTAKES\tWHAT")
	for _, r := range rings() {
		if !r.whole {
			fmt.Fprintf(w, "%s\t%s\t%s\n", r.command, minutes(r.budget.Seconds()), r.what)
		}
	}
	_ = w.Flush() // it is standard output
}
