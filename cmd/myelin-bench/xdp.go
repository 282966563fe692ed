package main

import (
	"context"
	"log/slog"

	"myelin/bench"
	"myelin/bench/results"
)

// measureXDP measures packets a second and ns a packet. Runs are short, so there are as many rounds as of Services.
func (s settings) measureXDP(ctx context.Context, log *slog.Logger) ([]results.Result, error) {
	opts, err := s.options(ctx, log, bench.Options{Rounds: roundsOf * s.rounds})
	if err != nil {
		return nil, err
	}
	all, err := bench.PerPacket(ctx, opts)
	if err != nil {
		return nil, err
	}
	rates, err := bench.Forwarding(ctx, opts, s.kubeproxy)
	return append(all, rates...), err
}
