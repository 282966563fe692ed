package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The rings. vm runs packet and lab again on the kernels of kernels; cluster needs a cluster that is up, and runs where
// it is named. kube is no ring: the rings after it have an API server, which it builds, or waits for if another process
// does.
const (
	style, unit, packet, lab, vm, cluster, kube = "style", "unit", "packet", "lab", "vm", "cluster", "kube"
)

// runner runs commands and counts the tests in their output.
type runner struct {
	out   io.Writer // standard output: rings that run side by side write to it at the same time
	tally tally
	begin time.Time
	// packages with tests, by ring
	packages map[string][]testPackage
	tests    tests
	core     bool // only the core of each ring
	took     []ran
	labDone  []string // tests of the lab ring that ran whole in this run
}

// patterns are the packages of a ring; unit has what the others don't have.
func patterns(ring string) []string {
	switch ring {
	case style:
		return []string{"./style"}
	case packet:
		return []string{"./bpf/...", "./service/sockdiag"}
	case lab:
		return []string{"./test/lab"}
	case cluster:
		return []string{"./test/cluster"}
	}
	return []string{"./..."}
}

// run runs rings one after the other. In the core they run side by side: each has packages that wait for timers,
// traffic and the kernel, while others compile and compute.
func (r *runner) run(ctx context.Context, rings []string) error {
	if !r.core {
		return r.sequence(ctx, rings)
	}
	lanes, errs := make([]*runner, len(rings)), make([]error, len(rings))
	var running sync.WaitGroup
	for i, ring := range rings {
		lanes[i] = r.lane()
		running.Go(func() { errs[i] = lanes[i].sequence(ctx, []string{ring}) })
	}
	running.Wait()
	for _, lane := range lanes {
		r.tally.add(lane.tally)
		r.took = append(r.took, lane.took...)
	}
	return errors.Join(errs...)
}

// lane is a runner of some of the rings of r.
func (r *runner) lane() *runner {
	return &runner{
		out: r.out, tally: newTally(), begin: r.begin, packages: r.packages, tests: r.tests, core: r.core,
	}
}

func (r *runner) sequence(ctx context.Context, rings []string) error {
	for i, ring := range rings {
		begin, failed := time.Now(), r.tally.failed
		fmt.Fprintf(r.out, "── ring %s (%d of %d)\n", ring, i+1, len(rings))
		if err := r.runRing(ctx, ring); err != nil {
			return err
		}
		took := time.Since(begin)
		so := fmt.Sprintf("so far %s, %d skipped", r.tally.summary(), r.tally.skipped)
		fmt.Fprintf(r.out, "── ring %s done in %v; %s\n%s", ring, took.Round(time.Second), so, r.tally.slowest())
		r.took = append(r.took, ran{ring, took, budgetOf(ring, r.core), r.tally.failed > failed})
	}
	return nil
}

func (r *runner) runRing(ctx context.Context, ring string) error {
	switch ring {
	case style, packet, cluster:
		return r.here(ctx, ring)
	case unit:
		if r.core {
			return r.here(ctx, ring, "-short", "-p=3", "-skip="+r.tests.slowUnit())
		}
		return r.here(ctx, ring)
	case lab:
		if r.core {
			return r.here(ctx, ring, "-short", "-parallel=4", "-run="+r.tests.coreLab())
		}
		return r.here(ctx, ring, "-parallel=4")
	case vm:
		return r.inVM(ctx)
	case kube:
		return buildKube(ctx)
	}
	return fmt.Errorf("no ring %q: style, unit, packet, lab, vm, kube or cluster", ring)
}

// buildKube tells the tests after it where an API server is.
func buildKube(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "test/kube/build.sh")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("build an API server: %w", err)
	}
	return os.Setenv("MYELIN_KUBE_BIN", strings.TrimSpace(string(out)))
}

// list finds the packages that have tests and gives each to one ring.
func (r *runner) list(ctx context.Context) error {
	r.packages = map[string][]testPackage{}
	var taken []testPackage
	for _, ring := range []string{style, packet, lab, cluster, unit} {
		found, err := listPackages(ctx, patterns(ring))
		if err != nil {
			return err
		}
		found = slices.DeleteFunc(found, func(p testPackage) bool { return slices.Contains(taken, p) })
		taken = append(taken, found...)
		r.packages[ring] = found
	}
	return nil
}

// testPackage is a package that has tests.
type testPackage struct{ path, dir string }

func listPackages(ctx context.Context, patterns []string) ([]testPackage, error) {
	format := "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}"
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-f", format}, patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages of %s: %w", strings.Join(patterns, " "), err)
	}
	var found []testPackage
	for line := range strings.Lines(string(out)) {
		if path, dir, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			found = append(found, testPackage{path, dir})
		}
	}
	return found, nil
}

// here runs a ring on this machine's kernel. The core isn't vetted: that takes as long again as compiling it, and is a
// piece of its own in .ci/run. Binaries have no symbols for debuggers: without them, linking takes a third less.
func (r *runner) here(ctx context.Context, ring string, flags ...string) error {
	if len(r.packages[ring]) == 0 {
		return fmt.Errorf("ring %s has no tests", ring)
	}
	args := append([]string{"test", "-json", "-count=1", "-timeout=20m", "-p=2", "-ldflags=-s -w"}, flags...)
	if r.core {
		args = append(args, "-vet=off")
	}
	for _, p := range r.packages[ring] {
		args = append(args, p.path)
	}
	return r.count(ring, exec.CommandContext(ctx, "go", args...))
}

// count runs a command whose output is test2json's. A command that fails without a failed test is one failure.
func (r *runner) count(ring string, cmd *exec.Cmd) error {
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stderr = r.out
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	failed := r.tally.failed
	readErr := r.tally.read(pipe, r.out, ring, true)
	if err := cmd.Wait(); err != nil && r.tally.failed == failed {
		fmt.Fprintf(r.out, "FAIL %s: %v\n", ring, err)
		r.tally.failed++
	}
	return readErr
}
