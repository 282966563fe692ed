package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"myelin/bench/results"
)

// Options say how to measure.
type Options struct {
	// Way is the first part of the names of results: "machine" or "vm".
	Way string
	// Family of the addresses; IPv4 when 0.
	Family Family
	// Rounds is how often every test of every scenario runs; the result is the median. At least 1.
	Rounds int
	// Seconds bounds each run of netperf by time. 0 bounds it by count instead, for virtual time.
	Seconds int
	// Apart sets scenarios up one after the other instead of all at once and interleaved. It is for virtual time, which
	// does not drift, but in which the idle work of one scenario's agents would be counted in another's path.
	Apart bool
	// Charge finds how many instructions each end of a path executes, in further runs. It needs virtual time and kernel
	// 5.5, and paths that name the network namespaces of their nodes.
	Charge bool
	// NetperfDir is the folder of netperf and netserver; empty looks in $PATH.
	NetperfDir string
	// Tests to run; all when empty.
	Tests []Test
	Log   *slog.Logger
}

// site is a scenario that stands, with what its runs measured: values by the test's name.
type site struct {
	scenario Scenario
	path     Path
	values   map[string][]float64
	shares   map[string]map[string]float64 // of ends, by the test's name
	stop     func()
}

// Measure runs all tests over all scenarios and returns medians with their ratio to the first scenario, the baseline.
func Measure(ctx context.Context, opts Options, scenarios []Scenario) ([]results.Result, error) {
	if opts.Family == 0 {
		opts.Family = IPv4
	}
	if len(opts.Tests) == 0 {
		opts.Tests = Tests()
	}
	if opts.Rounds < 1 || len(scenarios) == 0 {
		return nil, fmt.Errorf("measure %d rounds of %d scenarios: at least 1 of each", opts.Rounds, len(scenarios))
	}
	groups := [][]Scenario{scenarios}
	if opts.Apart {
		groups = slices.Collect(slices.Chunk(scenarios, 1))
	}
	var sites []*site
	for _, group := range groups {
		measured, err := opts.measureTogether(ctx, group)
		if err != nil {
			return nil, err
		}
		sites = append(sites, measured...)
	}
	list := opts.results(sites)
	if opts.Charge {
		list = append(list, opts.charges(sites)...)
	}
	return list, nil
}

// measureTogether has all scenarios of a group up at once and goes round them.
func (o Options) measureTogether(ctx context.Context, group []Scenario) (sites []*site, err error) {
	defer func() {
		for _, s := range sites {
			err = errors.Join(err, s.close(ctx))
		}
	}()
	tool := netperf{dir: o.NetperfDir, seconds: o.Seconds}
	for _, scenario := range group {
		s := &site{scenario: scenario, values: map[string][]float64{}, shares: map[string]map[string]float64{}}
		sites = append(sites, s)
		if s.path, err = scenario.Setup(ctx, o.Family); err != nil {
			return sites, fmt.Errorf("set up %s: %w", scenario.Name(), err)
		}
		if s.stop, err = tool.serve(ctx, s.path); err != nil {
			return sites, fmt.Errorf("set up %s: %w", scenario.Name(), err)
		}
	}
	if o.Apart {
		if err := settle(ctx, time.Second); err != nil {
			return sites, err
		}
	}
	for round := range o.Rounds {
		for _, test := range o.Tests {
			for _, s := range sites {
				value, err := tool.run(ctx, s.path, test)
				if err != nil {
					return sites, fmt.Errorf("round %d of %s: %w", round+1, s.scenario.Name(), err)
				}
				s.values[test.Name] = append(s.values[test.Name], value)
				o.Log.Info("measured", "round", round+1, "path", s.scenario.Name(), "test", test.Name, "value", value,
					"unit", test.unit)
			}
		}
	}
	if !o.Charge {
		return sites, nil
	}
	for _, s := range sites {
		if err := o.chargeAll(ctx, tool, s); err != nil {
			return sites, err
		}
	}
	return sites, nil
}

// close must also work after a cancel: what was set up is torn down whatever ended the run.
func (s *site) close(ctx context.Context) error {
	if s.stop != nil {
		s.stop()
	}
	if err := s.scenario.Teardown(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("tear down %s: %w", s.scenario.Name(), err)
	}
	return nil
}

func (o Options) results(sites []*site) []results.Result {
	var list []results.Result
	for _, s := range sites {
		for _, test := range o.Tests {
			list = append(list, results.Result{
				Name:   o.Way + "/" + s.scenario.Name() + o.Family.suffix() + "/" + test.Name,
				Value:  median(s.values[test.Name]),
				Unit:   test.unit,
				Kernel: results.Kernel(),
			}.Against(median(sites[0].values[test.Name])))
		}
	}
	return list
}

// median is the middle value, or the mean of the two middle ones.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
