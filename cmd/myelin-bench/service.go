package main

import (
	"context"
	"log/slog"
	"strings"

	"myelin/bench"
	"myelin/bench/results"
)

// part is one thing that -mode service, xdp or encryption measures.
type part struct {
	name    string
	measure func(context.Context, bench.Options) ([]results.Result, error)
}

const (
	manyServices = 10_000
	updates      = 1000
	requests     = 2000 // a second
)

func (s settings) parts() []part {
	one := func(measure func(context.Context, bench.Family, int) (results.Result, error)) func(context.Context,
		bench.Options) ([]results.Result, error) {
		return func(ctx context.Context, o bench.Options) ([]results.Result, error) {
			r, err := measure(ctx, o.Family, manyServices)
			return []results.Result{r}, err
		}
	}
	return []part{
		{"maglev", func(context.Context, bench.Options) ([]results.Result, error) { return bench.Maglev(), nil }},
		{"sync", one(bench.FullSync)},
		{"add", one(bench.AddOne)},
		{"flat", bench.Flat},
		{"versus", s.versus},
		{"rollout", func(ctx context.Context, o bench.Options) ([]results.Result, error) {
			r, err := bench.Rollouts(ctx, o.Family, updates, requests)
			return []results.Result{r}, err
		}},
	}
}

func (s settings) versus(ctx context.Context, o bench.Options) ([]results.Result, error) {
	var all []results.Result
	for _, services := range []int{4, 104, 1000, manyServices} {
		list, err := bench.AgainstKubeProxy(ctx, o, s.kubeproxy, services)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// roundsOf is how many rounds of Services and XDP there are to each of those of other ways: runs are short.
const roundsOf = 4

func (s settings) measureServices(ctx context.Context, log *slog.Logger) ([]results.Result, error) {
	return s.measureParts(ctx, log, s.parts(), bench.Options{Rounds: roundsOf * s.rounds})
}

// measureParts measures those of the parts that -parts names.
func (s settings) measureParts(ctx context.Context, log *slog.Logger, parts []part, opts bench.Options) (
	[]results.Result, error) {
	opts, err := s.options(ctx, log, opts)
	if err != nil {
		return nil, err
	}
	parts, err = choose(s.only, parts, func(p part) string { return p.name })
	if err != nil {
		return nil, flagError("-parts", err)
	}
	var all []results.Result
	for _, p := range parts {
		log.Info("measuring", "part", p.name)
		list, err := p.measure(ctx, opts)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// partNames are what -parts takes.
func partNames(parts []part) string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return strings.Join(names, ",")
}
