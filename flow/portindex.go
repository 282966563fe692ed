package flow

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"myelin/bpf"
)

// PortIndex deletes entries of the index of NAT ports whose connection has
// none: the kernel evicted it, or it was deleted here.
type PortIndex struct {
	Datapath *bpf.Datapath
	Log      *slog.Logger

	suspects map[bpf.DatapathNatTuple]bpf.DatapathPortIndex
}

// Run deletes until ctx ends.
func (p *PortIndex) Run(ctx context.Context) error {
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := p.Pass(); err != nil {
			p.Log.Warn("index of NAT ports keeps what is over", "error", err)
		}
	}
}

// Pass deletes what was of no use in the pass before as well: the datapath
// writes the index before the connection's entry.
func (p *PortIndex) Pass() error {
	var failed error
	suspects := map[bpf.DatapathNatTuple]bpf.DatapathPortIndex{}
	err := bpf.Each(p.Datapath.PortIndexes, func(k *bpf.DatapathNatTuple, i *bpf.DatapathPortIndex) bool {
		used, err := p.Datapath.PortIndexed(k, i)
		if err != nil {
			failed = err
			return false
		}
		if !used {
			suspects[*k] = *i
		}
		return true
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("read the index of NAT ports: %w", err)
	}
	for k, i := range suspects {
		if was, ok := p.suspects[k]; !ok || was != i {
			continue
		}
		if err := p.Datapath.PortIndexes.Delete(k); err != nil {
			failed = err
		}
		delete(suspects, k)
	}
	p.suspects = suspects
	if failed != nil {
		return fmt.Errorf("delete from the index of NAT ports: %w", failed)
	}
	return nil
}
