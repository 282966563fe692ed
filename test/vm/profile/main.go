// Command profile shows which functions of the kernel, and which of the datapath's programs, the instructions of a
// benchmark in the VM go to: exact counts for each transaction, on all nodes together.
//
//	go run ./test/vm/profile [-test crr] [-family 6] [-kernel 6.12] [-top 40] SCENARIO [SCENARIO]
//
// With two scenarios it shows the difference, the largest first: what veth-flows takes beyond redirect, for example.
// Scenarios are those of bin/myelin-bench. Each takes about a minute.
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
	"slices"
	"strings"
	"syscall"

	"myelin/bench"
)

// mark is the address that plugin.c counts up to.
const mark = "0x133713370000"

type settings struct {
	root, netperf, kernel string
	family, top           int
	test                  bench.Test
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "profile:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	s, scenarios, err := parse(args)
	if err != nil {
		return err
	}
	tools, err := os.MkdirTemp("", "myelin-profile-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tools)
	if err := s.build(ctx, tools); err != nil {
		return err
	}
	var profiles []profile
	for _, name := range scenarios {
		fmt.Fprintf(os.Stderr, "profile: %s\n", name)
		p, err := s.measure(ctx, tools, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		profiles = append(profiles, p)
	}
	return write(os.Stdout, profiles, s.top)
}

func parse(args []string) (s settings, scenarios []string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return s, nil, err
	}
	flags := flag.NewFlagSet("profile", flag.ContinueOnError)
	test := flags.String("test", "crr", "one kind of traffic")
	flags.IntVar(&s.family, "family", 4, "IP version: 4 or 6")
	flags.StringVar(&s.kernel, "kernel", "6.12", "kernel series of the VM")
	flags.IntVar(&s.top, "top", 40, "how many functions to show")
	flags.StringVar(&s.netperf, "netperf", filepath.Join(cache, "myelin/netperf/bin"),
		"folder of netperf and netserver (scripts/deps.sh bench)")
	if err := flags.Parse(args); err != nil {
		return s, nil, err
	}
	i := slices.IndexFunc(bench.Tests(), func(t bench.Test) bool { return t.Name == *test })
	if i < 0 {
		return s, nil, fmt.Errorf("-test %s: there is no such test", *test)
	}
	s.test = bench.Tests()[i]
	if n := flags.NArg(); n < 1 || n > 2 {
		return s, nil, fmt.Errorf("%d scenarios: want one, or two to compare", n)
	}
	s.root, err = os.Getwd()
	return s, flags.Args(), err
}

// build makes the plugin, the program that marks, and a netperf that does so.
func (s settings) build(ctx context.Context, tools string) error {
	here := filepath.Join(s.root, "test/vm/profile/guest")
	for _, command := range [][]string{
		{"clang-19", "-O2", "-shared", "-fPIC", "-DMARK=" + mark + "ull", "-o", filepath.Join(tools, "plugin.so"),
			filepath.Join(here, "plugin.c")},
		{"clang-19", "-nostdlib", "-static", "-no-pie", "-Wl,--section-start=.mark=" + mark, "-o",
			filepath.Join(tools, "mark"), filepath.Join(here, "mark.S")},
		{"cp", filepath.Join(here, "netperf.sh"), filepath.Join(tools, "netperf")},
		{"ln", "-s", filepath.Join(s.netperf, "netserver"), filepath.Join(tools, "netserver")},
	} {
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, out)
		}
	}
	return nil
}

// measure runs the scenario in the VM, after node, which every benchmark begins with.
func (s settings) measure(ctx context.Context, tools, scenario string) (profile, error) {
	out, err := os.MkdirTemp(tools, "out-")
	if err != nil {
		return profile{}, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.root, "test/vm/vm.sh"), "run", "-k", s.kernel, "--icount", "-t",
		"1800", "-m", "6G", "-w", out, "--", "env", "PROFILE_TOOLS="+tools, "PROFILE_OUT="+out,
		"PROFILE_NETPERF="+s.netperf, fmt.Sprintf("PROFILE_COUNT=%d", s.test.Count()),
		filepath.Join(s.root, "bin/myelin-bench"), "-virtual", "-mode", "vm", "-list", filepath.Join(out, "results"),
		"-scenarios", scenario, "-tests", s.test.Name, "-family", fmt.Sprint(s.family), "-netperf", tools)
	cmd.Env = append(os.Environ(), "VM_PLUGIN="+filepath.Join(tools, "plugin.so")+",out="+out)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // so that vm.sh can stop its QEMU
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return profile{}, errors.Join(err, ctx.Err())
	}
	return load(out, scenario, s.test.Count())
}
