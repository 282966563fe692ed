// Command myelin-bench measures the ways of a packet between two nodes and keeps the numbers: see bench/README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"myelin/bench"
	"myelin/bench/results"
)

// settings are the command line.
type settings struct {
	mode, scenarios, tests, kernel string
	netperf, kubeproxy, only       string
	envoy                          string
	dir, list                      string
	family, rounds, seconds        int
	check, virtual, verbose        bool
	client                         bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := parse()
	level := slog.LevelWarn
	if s.verbose {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if err := s.run(ctx, log); err != nil {
		fmt.Fprintln(os.Stderr, "myelin-bench:", err)
		stop()
		os.Exit(1)
	}
}

func parse() settings {
	var s settings
	flag.StringVar(&s.mode, "mode", "",
		"machine: here, in real time; vm: in the VM of test/vm by instruction counting; encryption: so, what "+
			"encrypts; service: Services at scale; "+
			"xdp: a load balancer's packets; policy: 10,000 policies, 50,000 identities, 1,000,000 prefixes; l7: HTTP "+
			"requests through an L7 policy; empty: only render and check")
	flag.StringVar(&s.scenarios, "scenarios", "all", "paths to compare with node, by comma")
	flag.StringVar(&s.tests, "tests", "rr,crr,stream,udp_rr", "traffic, by comma")
	flag.IntVar(&s.family, "family", 4, "IP version: 4 or 6")
	flag.IntVar(&s.rounds, "rounds", 5,
		"rounds on the machine (in the VM there are 3; of Services and XDP, whose runs are short, 4 times as many)")
	flag.IntVar(&s.seconds, "seconds", 2, "length of one run on the machine")
	flag.StringVar(&s.kernel, "kernel", "6.12", "kernel series of the VM")
	flag.StringVar(&s.netperf, "netperf", cacheDir("netperf/bin"),
		"folder of netperf and netserver (scripts/deps.sh bench); empty: $PATH")
	flag.StringVar(&s.kubeproxy, "kubeproxy", cacheDir("kube-proxy/bin"),
		"folder of kube-proxy, iptables and nft (scripts/deps.sh kubeproxy)")
	flag.StringVar(&s.envoy, "envoy", cacheDir("envoy/envoy"), "the program Envoy (scripts/deps.sh envoy)")
	flag.StringVar(&s.only, "parts", "all", fmt.Sprintf("by comma: of -mode service %s; of -mode xdp %s; of -mode "+
		"encryption %s", partNames(settings{}.parts()), partNames(settings{}.partsXDP()),
		partNames(settings{}.partsEncryption())))
	flag.StringVar(&s.dir, "dir", ".", "the source tree: its bench/results.json and BENCHMARKS.md are rewritten")
	flag.BoolVar(&s.check, "check", false, "fail where a budget of bench/budget.json is broken")
	flag.BoolVar(&s.verbose, "v", false, "report every run")
	flag.BoolVar(&s.virtual, "virtual", false, "inside the VM: bound by count, write results to -list only")
	flag.BoolVar(&s.client, "client", false, "inside a path: connect to what standard input says")
	flag.StringVar(&s.list, "list", "", "with -virtual: the file for results")
	flag.Parse()
	return s
}

func cacheDir(elem string) string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "myelin", elem)
}

func (s settings) run(ctx context.Context, log *slog.Logger) error {
	var measured []results.Result
	var err error
	switch {
	case s.client:
		return bench.Client(os.Stdin, os.Stdout)
	case s.virtual:
		return s.measureInside(ctx, log)
	case s.mode == "machine":
		warnIfBusy(log)
		measured, err = s.measure(ctx, log, bench.Options{Way: "machine", Rounds: s.rounds, Seconds: s.seconds})
	case s.mode == "service":
		warnIfBusy(log)
		measured, err = s.measureServices(ctx, log)
	case s.mode == "xdp":
		warnIfBusy(log)
		measured, err = s.measureXDP(ctx, log)
	case s.mode == "policy":
		warnIfBusy(log)
		measured, err = s.measurePolicies(ctx, log)
	case s.mode == "l7":
		warnIfBusy(log)
		measured, err = s.measureL7(ctx, log)
	case s.mode == "vm":
		measured, err = s.measureVM(ctx)
	case s.mode == "encryption":
		measured, err = s.measureEncryption(ctx)
	case s.mode != "":
		err = fmt.Errorf("no mode %q: machine, vm, encryption, service, xdp, policy or l7", s.mode)
	}
	if err != nil {
		return err
	}
	if len(measured) > 0 {
		if err := results.Print(os.Stdout, measured); err != nil {
			return err
		}
	}
	return s.keep(measured)
}

// warnIfBusy: interleaving evens out slow drift, not others that want the same processor.
func warnIfBusy(log *slog.Logger) {
	var load float64
	text, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, err = fmt.Sscan(string(text), &load)
	}
	if err == nil && load > 0.5 {
		log.Warn("the machine is busy: ratios will be off by more than budgets allow for", "load", load)
	}
}

// keep merges what was measured, renders the page and checks budgets.
func (s settings) keep(measured []results.Result) error {
	path := filepath.Join(s.dir, "bench/results.json")
	if err := results.Record(path, measured); err != nil {
		return err
	}
	all, err := results.Load(path)
	if err != nil {
		return err
	}
	budgets, err := results.LoadBudgets(filepath.Join(s.dir, "bench/budget.json"))
	if err != nil {
		return err
	}
	page := results.NewPage(all, budgets)
	if err := page.WriteFile(filepath.Join(s.dir, "bench/BENCHMARKS.md.tmpl"),
		filepath.Join(s.dir, "BENCHMARKS.md")); err != nil {
		return err
	}
	if !s.check {
		return nil
	}
	return errors.Join(results.Check(all, budgets)...)
}

// options completes what all ways of measuring have in common, after what a killed run left behind is gone. In the VM,
// where there is none, the machine's folders for temporary files are visible, and its processes are not.
func (s settings) options(ctx context.Context, log *slog.Logger, opts bench.Options) (bench.Options, error) {
	if s.family != int(bench.IPv4) && s.family != int(bench.IPv6) {
		return opts, fmt.Errorf("-family %d: 4 or 6", s.family)
	}
	opts.Family, opts.NetperfDir, opts.Log = bench.Family(s.family), s.netperf, log
	if s.virtual {
		return opts, nil
	}
	return opts, bench.Sweep(ctx)
}

func flagError(name string, err error) error { return fmt.Errorf("%s: %w", name, err) }

func (s settings) measure(ctx context.Context, log *slog.Logger, opts bench.Options) ([]results.Result, error) {
	opts, err := s.options(ctx, log, opts)
	if err != nil {
		return nil, err
	}
	all := scenarios(opts.Family)
	if !s.virtual {
		all = append(all, bench.NodePort(binaries())) // it measures how fast ports become free, which takes real time
	}
	if s.scenarios != "all" {
		all = append(all, bench.BigTCP(binaries())...) // for streams and large messages only
	}
	scenarios, err := choose(s.scenarios, all, bench.Scenario.Name)
	if err != nil {
		return nil, flagError("-scenarios", err)
	}
	if scenarios[0].Name() != "node" {
		scenarios = append([]bench.Scenario{bench.Node()}, scenarios...)
	}
	opts.Tests, err = choose(s.tests, bench.Tests(), func(t bench.Test) string { return t.Name })
	if err != nil {
		return nil, flagError("-tests", err)
	}
	return bench.Measure(ctx, opts, scenarios)
}

func (s settings) measurePolicies(ctx context.Context, log *slog.Logger) ([]results.Result, error) {
	opts, err := s.options(ctx, log, bench.Options{})
	if err != nil {
		return nil, err
	}
	held, err := bench.Holding(ctx, opts) // first: memory is not small again after what comes then
	if err != nil {
		return nil, err
	}
	changed, err := bench.Policing(ctx, opts)
	return append(held, changed...), err
}

func (s settings) measureL7(ctx context.Context, log *slog.Logger) ([]results.Result, error) {
	opts, err := s.options(ctx, log, bench.Options{Rounds: roundsOf * s.rounds})
	if err != nil {
		return nil, err
	}
	return bench.L7(ctx, opts, binaries(), s.envoy)
}

// binaries is the folder of the programs under test: this one's own.
func binaries() string {
	self, err := os.Executable()
	if err != nil {
		return "."
	}
	return filepath.Dir(self)
}

// scenarios are all paths that a family can be measured on; node, the baseline, is first.
func scenarios(family bench.Family) []bench.Scenario {
	return slices.Concat([]bench.Scenario{bench.Node(), bench.Plain()}, bench.Redirects(),
		bench.VXLANRedirects(), bench.Agents(binaries(), family), bench.Services(binaries()), bench.Policies())
}

// choose picks by name, in the order of all, and refuses a name that nothing has.
func choose[T any](names string, all []T, name func(T) string) ([]T, error) {
	if names == "all" {
		return all, nil
	}
	wanted := strings.Split(names, ",")
	var chosen []T
	for _, one := range all {
		if i := slices.Index(wanted, name(one)); i >= 0 {
			chosen = append(chosen, one)
			wanted = slices.Delete(wanted, i, i+1)
		}
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("no such name: %s", strings.Join(wanted, ", "))
	}
	return chosen, nil
}
