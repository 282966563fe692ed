// Command rings runs the tests, ring by ring, and ends with one line that sums them up: "N passed, N failed".
//
//	go run ./test/rings [style] [unit] [packet] [lab] [vm] [kube] [cluster]
//	go run ./test/rings -core [style] [unit] [packet] [lab]
//	go run ./test/rings -ci [-plan] [-turn N] [-base COMMIT] [-budget 60m]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	core, ci, planOnly bool
	turn               int
	base               string
	budget             time.Duration
	rings              []string
}

func parse() options {
	var o options
	flag.BoolVar(&o.core, "core", false, "make test: style, unit, packet and the core of lab")
	flag.BoolVar(&o.ci, "ci", false, "what .ci/run runs: make test, what the change touches, and a third of the rest")
	flag.BoolVar(&o.planOnly, "plan", false, "with -ci: print what would run, and run nothing")
	flag.IntVar(&o.turn, "turn", -1, "with -ci: which third, 0 to 2; -1: the one that is next")
	flag.StringVar(&o.base, "base", "", "with -ci: the commit that the change begins at; empty: see README.md")
	flag.DurationVar(&o.budget, "budget", time.Hour, "with -ci: no piece is started that would end later")
	flag.Parse()
	o.rings = flag.Args()
	return o
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	o := parse()
	r := &runner{out: os.Stdout, tally: newTally(), begin: time.Now()}
	err := r.start(ctx, o)
	if err != nil {
		fmt.Println("rings:", err)
		r.tally.failed++
	}
	stop()
	if o.planOnly && err == nil {
		return
	}
	r.writeTable()
	if o.core {
		writeOthers(r.out)
	}
	fmt.Println(r.tally.summary())
	if r.tally.failed > 0 {
		os.Exit(1)
	}
}

func (r *runner) start(ctx context.Context, o options) error {
	var err error
	if r.tests, err = readTests("test/rings/tests.txt"); err != nil {
		return err
	}
	// Programs and tests are built with the same flags as bin/: a package is compiled once for both.
	if flags := os.Getenv("GOFLAGS"); !strings.Contains(flags, "-trimpath") {
		if err := os.Setenv("GOFLAGS", strings.TrimSpace(flags+" -trimpath")); err != nil {
			return err
		}
	}
	if o.ci {
		return r.runPlanned(ctx, o)
	}
	if err := r.list(ctx); err != nil {
		return err
	}
	rings := o.rings
	r.core = o.core
	switch {
	case len(rings) > 0:
	case o.core:
		rings = coreRings()
	default:
		rings = []string{style, unit, packet, lab, vm}
	}
	if err := r.run(ctx, rings); err != nil {
		return err
	}
	if everywhere := []string{unit, packet, lab, vm}; ctx.Err() == nil && !missing(everywhere, rings) {
		r.tally.failNeverRun(r.out)
	}
	return nil
}

// missing reports whether some of the wanted are not among all.
func missing(wanted, all []string) bool {
	return slices.ContainsFunc(wanted, func(w string) bool { return !slices.Contains(all, w) })
}
