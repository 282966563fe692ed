package main

import (
	"context"
	"log/slog"

	"myelin/bench"
	"myelin/bench/results"
)

func (s settings) measureXDP(ctx context.Context, log *slog.Logger) ([]results.Result, error) {
	return s.measureParts(ctx, log, s.partsXDP(), bench.Options{Rounds: roundsOf * s.rounds})
}

// partsXDP measure ns a packet, floods and many flows, all of both families, and packets a second.
func (s settings) partsXDP() []part {
	return []part{
		{"packet", bench.PerPacket},
		{"flood", bench.Floods},
		{"million", bench.Million},
		{"ipip", bench.ForwardingIPIP},
		{"versus", func(ctx context.Context, o bench.Options) ([]results.Result, error) {
			return bench.Forwarding(ctx, o, s.kubeproxy)
		}},
	}
}
