package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/internal/table"
	"myelin/policy/maps"
	"myelin/test/policy/scene"
)

// NewTestKernel makes a Kernel of programs and maps that live as long as the test.
func NewTestKernel(t testing.TB) *maps.Writer {
	d := scene.Load(t, map[string]uint32{
		"peers": 4096, "peer_prefixes": 4096, "peer_classes": 1 << 16, "verdicts": 1 << 18, "policies": 256,
		"flows": 512,
	})
	return maps.New(d, &bpf.Epochs{Map: d.Epochs}, time.Now)
}

// Settle brings what the tables have now to the kernel.
func (e *Engine) Settle() error {
	f, err := newFeed(&e.Params, e.compiler, e.audits)
	if err != nil {
		return err
	}
	e.round(context.Background(), f, new(table.Watch))
	if !e.started || e.failures > 0 {
		return errors.New("not all is in the kernel")
	}
	return nil
}

// DatapathOf is what has the maps, and the programs that ask them.
func DatapathOf(k *maps.Writer) *bpf.Datapath { return k.Datapath }
