// Command cold measures how long a newcomer waits: a fresh clone of the last commit, no compiled package, no module, no
// kernel and no program of Kubernetes, until the command ends. Distribution packages that are installed stay. The times
// go to bench/results.json, which has budgets for them.
//
//	go run ./test/cold demo|test|ci...
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"myelin/bench/results"
)

// commands are what is measured, by name.
func commands() map[string][]string {
	return map[string][]string{"demo": {"make", "demo"}, "test": {"make", "test"}, "ci": {".ci/run"}}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) < 2 {
		fail(errors.New("which of demo, test and ci?"))
	}
	for _, name := range os.Args[1:] {
		if commands()[name] == nil {
			fail(fmt.Errorf("nothing is called %q: demo, test or ci", name))
		}
	}
	root, err := output(ctx, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		fail(err)
	}
	for _, name := range os.Args[1:] {
		took, err := measure(ctx, root, name, commands()[name])
		if err != nil {
			fail(fmt.Errorf("measure %s: %w", name, err))
		}
		row := results.Result{Name: "test/" + name + "_cold_s", Value: took.Round(time.Second).Seconds(), Unit: "s"}
		fmt.Printf("%s: %g %s\n", row.Name, row.Value, row.Unit)
		if err := results.Record(filepath.Join(root, "bench", "results.json"), []results.Result{row}); err != nil {
			fail(err)
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "cold:", err)
	os.Exit(1)
}

// measure runs a command in a clone with empty caches, and removes both. A command that fails has no time.
func measure(ctx context.Context, root, name string, command []string) (took time.Duration, err error) {
	dir, err := os.MkdirTemp("", "myelin-cold-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	clone := filepath.Join(dir, "myelin")
	if _, err := output(ctx, "git", "clone", "--quiet", "--no-hardlinks", root, clone); err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = clone, os.Stdout, os.Stderr
	cmd.Env = environment(dir, os.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	return time.Since(begin), nil
}

// environment has all caches below dir, and nothing of ours that would tell the clone where programs are.
func environment(dir string, all []string) (list []string) {
	ours := []string{"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "GOFLAGS"}
	for _, one := range all {
		name, _, _ := strings.Cut(one, "=")
		if !strings.HasPrefix(name, "MYELIN_") && !slices.Contains(ours, name) {
			list = append(list, one)
		}
	}
	flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -modcacherw") // what isn't writable can't be removed
	return append(list, "GOCACHE="+filepath.Join(dir, "build"), "GOMODCACHE="+filepath.Join(dir, "modules"),
		"XDG_CACHE_HOME="+filepath.Join(dir, "cache"), "GOFLAGS="+flags)
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
