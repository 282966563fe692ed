// Command cold measures how long a newcomer waits: a fresh clone of the last commit, no compiled package, no module, no
// kernel and no program of Kubernetes, until the command ends. Distribution packages that are installed stay. The times
// go to bench/results.json, which has budgets for them. With -times and -busy a command runs repeatedly, beside loops
// that occupy CPUs: its tests must pass all the same. With -warm the caches are this machine's.
//
//	go run ./test/cold [-times N] [-busy M] [-warm] demo|test|ci...
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
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"myelin/bench/results"
)

// commands are what is measured, by name.
func commands() map[string][]string {
	return map[string][]string{"demo": {"make", "demo"}, "test": {"make", "test"}, "ci": {".ci/run"}}
}

// options say how often a command runs, beside how many loops that each occupy a CPU, and whether with this machine's
// caches.
type options struct {
	times, busy int
	warm        bool
}

// cold reports whether a time is that of a newcomer, which has a budget.
func (o options) cold() bool { return o.times == 1 && o.busy == 0 && !o.warm }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, names, err := parse(os.Args[1:])
	if err != nil {
		fail(err)
	}
	root, err := output(ctx, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		fail(err)
	}
	for _, name := range names {
		took, err := measure(ctx, root, commands()[name], o)
		if err != nil {
			fail(fmt.Errorf("measure %s: run %d of %d: %w", name, len(took)+1, o.times, err))
		}
		if !o.cold() {
			continue
		}
		row := results.Result{Name: "test/" + name + "_cold_s", Value: took[0].Round(time.Second).Seconds(), Unit: "s"}
		fmt.Printf("%s: %g %s\n", row.Name, row.Value, row.Unit)
		if err := results.Record(filepath.Join(root, "bench", "results.json"), []results.Result{row}); err != nil {
			fail(err)
		}
	}
}

// parse reads the arguments of the command line.
func parse(args []string) (o options, names []string, err error) {
	flags := flag.NewFlagSet("cold", flag.ContinueOnError)
	flags.IntVar(&o.times, "times", 1, "how often each command runs, in one clone; ends at the first failure")
	flags.IntVar(&o.busy, "busy", 0, "loops that each occupy a CPU meanwhile")
	flags.BoolVar(&o.warm, "warm", false, "use the caches of this machine")
	if err := flags.Parse(args); err != nil {
		return o, nil, err
	}
	if o.times < 1 || o.busy < 0 {
		return o, nil, fmt.Errorf("-times %d -busy %d: want at least 1, and at least 0", o.times, o.busy)
	}
	if flags.NArg() == 0 {
		return o, nil, errors.New("which of demo, test and ci?")
	}
	for _, name := range flags.Args() {
		if commands()[name] == nil {
			return o, nil, fmt.Errorf("nothing is called %q: demo, test or ci", name)
		}
	}
	return o, flags.Args(), nil
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "cold:", err)
	os.Exit(1)
}

// measure runs a command in a clone with empty caches, and removes both. Further runs find the caches filled, the first
// one does with warm set. It returns the times of the runs that passed, and ends at the first that fails.
func measure(ctx context.Context, root string, command []string, o options) (took []time.Duration, err error) {
	dir, err := os.MkdirTemp("", "myelin-cold-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	clone := filepath.Join(dir, "myelin")
	if _, err := output(ctx, "git", "clone", "--quiet", "--no-hardlinks", root, clone); err != nil {
		return nil, err
	}
	env := environment(os.Environ())
	if !o.warm {
		env = append(env, caches(dir)...)
	}
	defer occupy(o.busy)()
	for n := range o.times {
		one, err := run(ctx, clone, command, env)
		if err != nil {
			return took, err
		}
		took = append(took, one)
		fmt.Printf("%s: run %d of %d passed in %s\n", strings.Join(command, " "), n+1, o.times, one.Round(time.Second))
	}
	return took, nil
}

func run(ctx context.Context, clone string, command, env []string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = clone, os.Stdout, os.Stderr
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	return time.Since(begin), nil
}

// occupy starts loops that each occupy a CPU until stop returns.
func occupy(loops int) (stop func()) {
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(before + loops) // this program's own work needs a thread, too
	var end atomic.Bool
	var running sync.WaitGroup
	for range loops {
		running.Go(func() {
			for !end.Load() {
			}
		})
	}
	return func() {
		end.Store(true)
		running.Wait()
		runtime.GOMAXPROCS(before)
	}
}

// environment has nothing of ours that would tell the clone where programs are.
func environment(all []string) (list []string) {
	ours := []string{"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
	for _, one := range all {
		name, _, _ := strings.Cut(one, "=")
		if !strings.HasPrefix(name, "MYELIN_") && !slices.Contains(ours, name) {
			list = append(list, one)
		}
	}
	return list
}

// caches are the variables that have all caches below dir.
func caches(dir string) []string {
	flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -modcacherw") // what isn't writable can't be removed
	return []string{"GOCACHE=" + filepath.Join(dir, "build"), "GOMODCACHE=" + filepath.Join(dir, "modules"),
		"XDG_CACHE_HOME=" + filepath.Join(dir, "cache"), "GOFLAGS=" + flags}
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
