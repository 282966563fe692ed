// Command conformance runs upstream's network specs on a cluster that is up, and says how they ended.
//
//	go run ./test/cluster/conformance [-short] [-focus REGEXP] [-skip REGEXP] [-procs N] [-disturb PROGRAM]
//	    [-write docs/conformance.md]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"myelin/bench/results"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// options are what the command line says.
type options struct {
	selection
	procs                   int
	write, disturb, cluster string
}

func flags() options {
	o := options{selection: everything()}
	short := flag.Bool("short", false, "the specs that cover most in ten minutes")
	focus := flag.String("focus", "", "regular expression of specs, in the place of all")
	skip := flag.String("skip", "", "regular expression of specs that are not run")
	flag.IntVar(&o.procs, "procs", 6, "how many specs run at a time")
	flag.StringVar(&o.write, "write", "",
		"file for the table of results; counts go to bench/results.json if MYELIN_RECORD is 1")
	flag.StringVar(&o.disturb, "disturb", "",
		"program that runs meanwhile, 15 s after it ended anew, with the number of the round")
	flag.StringVar(&o.cluster, "cluster", "test/cluster/cluster.sh", "the script that made the cluster")
	flag.Parse()
	if *short {
		o.selection = shortened()
	}
	if *focus != "" {
		o.focus = *focus
	}
	if *skip != "" {
		o.leave = append(o.leave, rule{regexp.MustCompile(*skip), "not asked for"})
	}
	return o
}

func run(ctx context.Context) error {
	o := flags()
	begin := time.Now()
	meanwhile, stop := context.WithCancel(ctx)
	defer stop()
	disturbed := disturb(meanwhile, o.disturb)
	specs, err := ginkgo(ctx, o)
	stop()
	rounds, bad := disturbed.wait()
	if err := errors.Join(err, bad); err != nil {
		return err
	}
	t := tally(specs, o.leave)
	fmt.Print(t.summary(time.Since(begin)))
	numbers := t.results()
	if o.disturb != "" {
		fmt.Printf("disturbed %d times meanwhile\n", rounds)
		numbers = []results.Result{
			{Name: "k8s/disturbances", Value: float64(rounds), Unit: "times"},
			{Name: "k8s/disturbed_passed", Value: float64(len(t.ran) - len(t.failed())), Unit: "specs"},
			{Name: "k8s/disturbed_failed", Value: float64(len(t.failed())), Unit: "specs"},
		}
	}
	if o.write != "" {
		if err := os.WriteFile(o.write, t.markdown(), 0o644); err != nil {
			return fmt.Errorf("write the table: %w", err)
		}
	}
	if os.Getenv("MYELIN_RECORD") == "1" {
		if err := results.Record(filepath.Join("bench", "results.json"), numbers); err != nil {
			return err
		}
	}
	if len(t.failed()) > 0 || len(t.ran) == 0 {
		return fmt.Errorf("%d specs failed, %d ran", len(t.failed()), len(t.ran))
	}
	return nil
}

// ginkgo runs the selected specs where the API server is, and returns the report of all there are.
func ginkgo(ctx context.Context, o options) ([]spec, error) {
	dir, err := os.MkdirTemp("", "myelin-conformance-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the report: %w", err)
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, o.cluster, append([]string{"suite", "--no-color",
		fmt.Sprintf("--procs=%d", o.procs), "--poll-progress-after=0",
		"--json-report=report.json", "--output-dir=" + dir}, o.flags()...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("run the suite: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		return nil, fmt.Errorf("the suite made no report: %w", err)
	}
	return readReport(data)
}
