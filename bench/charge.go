package bench

import (
	"context"
	"errors"
	"fmt"

	"myelin/bench/ends"
	"myelin/bench/results"
)

// chargedTo are the ends of a path that CPU time is charged to, as the names of their results end.
func chargedTo() []string { return []string{"client", "server", "other"} }

// charge runs a test once more, and finds how much of it each end's part is. Starting netperf costs the client as much
// as thousands of requests, so it is the difference of a run and a short one that is divided.
func (n netperf) charge(ctx context.Context, path Path, test Test) (shares [3]float64, err error) {
	e, err := ends.Begin([]string{path.Client.Netns, path.ClientNode}, []string{path.Server.Netns, path.ServerNode})
	if err != nil {
		return shares, fmt.Errorf("charge the ends of %s: %w", test.Name, err)
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	var at [3]ends.Times
	for i, bound := range []int{0, -test.count / warmUp, -test.count} {
		if bound != 0 {
			if _, err := n.once(ctx, path, test, bound); err != nil {
				return shares, err
			}
		}
		if at[i], err = e.Times(); err != nil {
			return shares, err
		}
	}
	short, long := at[1].Sub(at[0]), at[2].Sub(at[1])
	more := func(long, short uint64) float64 { return max(0, float64(long)-float64(short)) } // noise may be below 0
	counts := [3]float64{more(long.Client, short.Client), more(long.Server, short.Server),
		more(long.Other, short.Other)}
	all := counts[0] + counts[1] + counts[2]
	if all <= 0 {
		return shares, fmt.Errorf("charge the ends of %s: %v ns in all", test.Name, all)
	}
	for i := range counts {
		shares[i] = counts[i] / all
	}
	return shares, nil
}

// chargeAll charges the ends of all tests of a site.
func (o Options) chargeAll(ctx context.Context, tool netperf, s *site) error {
	for _, test := range o.Tests {
		shares, err := tool.charge(ctx, s.path, test)
		if err != nil {
			return fmt.Errorf("%s: %w", s.scenario.Name(), err)
		}
		s.shares[test.Name] = map[string]float64{}
		for i, end := range chargedTo() {
			s.shares[test.Name][end] = shares[i]
		}
		o.Log.Info("charged", "path", s.scenario.Name(), "test", test.Name, "shares", s.shares[test.Name])
	}
	return nil
}

// charges are instructions by end: for a request, or millions for a Gbit. Their sum is what runs without programs at
// tracepoints take, and each end's part of it that of the run with them.
func (o Options) charges(sites []*site) []results.Result {
	var list []results.Result
	for _, s := range sites {
		for _, test := range o.Tests {
			for _, end := range chargedTo() {
				r := results.Result{
					Name: o.Way + "/" + s.scenario.Name() + o.Family.suffix() + "/" + test.Name + "_" + end,
					Unit: test.work(), Kernel: results.Kernel(), Value: s.instructions(test, end),
				}
				if end != "other" {
					r = r.Against(sites[0].instructions(test, end))
				}
				list = append(list, r)
			}
		}
	}
	return list
}

// instructions are those of an end in virtual time, in units of test.work.
func (s *site) instructions(test Test, end string) float64 {
	all := 1e9 / median(s.values[test.Name])
	if test.unit == streamUnit {
		all *= 1000 / 1e6
	}
	return all * s.shares[test.Name][end]
}

// work is the unit of what a test costs.
func (t Test) work() string {
	if t.unit == streamUnit {
		return "M instructions/Gbit"
	}
	return "instructions"
}
