// Command conformance runs upstream's network specs on a cluster that is up, and says how they ended.
//
//	go run ./test/cluster/conformance [-short] [-focus REGEXP] [-procs N] [-write docs/conformance.md]
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

func run(ctx context.Context) error {
	short := flag.Bool("short", false, "the specs that cover most in ten minutes")
	only := flag.String("focus", "", "regular expression of specs, in the place of all")
	skip := flag.String("skip", "", "regular expression of specs that are not run")
	procs := flag.Int("procs", 4, "how many specs run at a time")
	write := flag.String("write", "", "file for the table of results; with MYELIN_RECORD=1 the counts go to bench/results.json too")
	cluster := flag.String("cluster", "test/cluster/cluster.sh", "the script that made the cluster")
	flag.Parse()
	s := everything()
	switch {
	case *only != "":
		s.focus = *only
	case *short:
		s = shortened()
	}
	if *skip != "" {
		s.leave = append(s.leave, rule{regexp.MustCompile(*skip), "not asked for"})
	}
	begin := time.Now()
	specs, err := ginkgo(ctx, *cluster, *procs, s)
	if err != nil {
		return err
	}
	t := tally(specs, s.leave)
	fmt.Print(t.summary(time.Since(begin)))
	if *write != "" {
		if err := os.WriteFile(*write, t.markdown(), 0o644); err != nil {
			return fmt.Errorf("write the table: %w", err)
		}
		if os.Getenv("MYELIN_RECORD") == "1" {
			if err := results.Record(filepath.Join("bench", "results.json"), t.results()); err != nil {
				return err
			}
		}
	}
	if len(t.failed()) > 0 || len(t.ran) == 0 {
		return fmt.Errorf("%d specs failed, %d ran", len(t.failed()), len(t.ran))
	}
	return nil
}

// ginkgo runs the selected specs where the API server is, and returns the report of all there are.
func ginkgo(ctx context.Context, cluster string, procs int, s selection) ([]spec, error) {
	dir, err := os.MkdirTemp("", "myelin-conformance-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the report: %w", err)
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, cluster, append([]string{"suite", "--no-color", fmt.Sprintf("--procs=%d", procs), "--poll-progress-after=0",
		"--json-report=report.json", "--output-dir=" + dir}, s.flags()...)...)
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
