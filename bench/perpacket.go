package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"myelin/bench/results"
)

// PerPacket measures how long our programs take for a packet, of both families, by BPF_PROG_TEST_RUN: a player makes
// each packet anew and goes on to our program, and the same player goes on to a program that does nothing but return
// the same; the difference is the median over rounds, in which all costs are measured one after the other. Code and
// rows are in the processor's caches, so what it says is what the work costs, not what a packet among others costs.
// Kernel 6.6 or later.
func PerPacket(ctx context.Context, opts Options) (list []results.Result, err error) {
	var b costBench
	defer func() { err = errors.Join(err, b.close(context.WithoutCancel(ctx))) }()
	families := []Family{IPv4, IPv6}
	for _, family := range families {
		if err := b.add(ctx, family); err != nil {
			return nil, err
		}
	}
	for round := range opts.Rounds {
		for _, t := range b.timings {
			if err := t.round(); err != nil {
				return nil, fmt.Errorf("round %d of %s%s: %w", round+1, t.name, t.front.family.suffix(), err)
			}
		}
	}
	for _, t := range b.timings {
		opts.Log.Info("measured", "what", t.name, "family", t.front.family, "ns", t.took)
	}
	for _, family := range families {
		results, err := b.results(family)
		if err != nil {
			return nil, err
		}
		list = append(list, results...)
	}
	return list, nil
}

// costBench has the fronts of a measurement and what is timed on them.
type costBench struct {
	fronts  []*front
	timings []*timing
}

// add builds the fronts of a family and its timings.
func (b *costBench) add(ctx context.Context, family Family) error {
	fronts, mines := map[frontKind]*front{}, map[frontKind]*mine{}
	for _, kind := range frontKinds() {
		fronts[kind], mines[kind] = newCostFront(kind, family)
		b.fronts = append(b.fronts, fronts[kind])
		if err := fronts[kind].stand(ctx); err != nil {
			return fmt.Errorf("set up %s: %w", fronts[kind].name, err)
		}
	}
	for _, c := range costs() {
		t, err := newTiming(fronts[c.front], mines[c.front].balancer.datapath, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		b.timings = append(b.timings, t)
	}
	return nil
}

// results are the medians of all costs, the ratios of some, and the largest share of packets that went to tc.
func (b *costBench) results(family Family) ([]results.Result, error) {
	timings := slices.DeleteFunc(slices.Clone(b.timings), func(t *timing) bool { return t.front.family != family })
	tookBy := func(name string) []float64 {
		return timings[slices.IndexFunc(timings, func(t *timing) bool { return t.name == name })].took
	}
	var list, ratios []results.Result
	for _, t := range timings {
		list = append(list, results.Result{Name: fmt.Sprintf("%s_v%d", t.name, family), Value: median(t.took),
			Unit: "ns"})
		for _, r := range t.ratios {
			baseline := make([]float64, len(t.took))
			for _, name := range r.of {
				for i, took := range tookBy(name) {
					baseline[i] += took
				}
			}
			value, err := medianRatio(t.took, baseline)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.name, err)
			}
			ratios = append(ratios, results.Result{Name: r.name + family.suffix(), Value: value})
		}
		if t.known {
			ratios = append(ratios, results.Result{Name: knownToTC + family.suffix(), Value: slices.Max(t.passed),
				Unit: "%"})
		}
	}
	return append(list, ratios...), nil
}

// medianRatio is the median of the ratios of each round.
func medianRatio(values, baselines []float64) (float64, error) {
	var ratios []float64
	for i, baseline := range baselines {
		if baseline <= 0 {
			return 0, fmt.Errorf("round %d: the baseline took %g ns", i+1, baseline)
		}
		ratios = append(ratios, values[i]/baseline)
	}
	return median(ratios), nil
}

func (b *costBench) close(ctx context.Context) error {
	var errs []error
	for _, t := range b.timings {
		errs = append(errs, t.close())
	}
	for _, f := range b.fronts {
		errs = append(errs, f.down(ctx))
	}
	return errors.Join(errs...)
}
