package agent

import (
	"context"
	"os"
	"runtime/debug"
	measures "runtime/metrics"
	"time"
)

const (
	// garbagePercent is how much garbage there may be, of what lives, before it is collected: a
	// node's memory is for its pods, and an agent makes little garbage but when it learns a cluster.
	garbagePercent = 50
	// giveBackEvery is how often the agent looks for memory that it has no use for,
	// giveBackFrom how many bytes are worth a collection.
	giveBackEvery = 10 * time.Second
	giveBackFrom  = 32 << 20
)

// giveBack gives memory back to the kernel that a large change took, such as the list of all
// pods, until ctx ends. The runtime would keep it for the next one, and what is garbage until
// there is half as much as of what lives.
func giveBack(ctx context.Context) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
	tick := time.NewTicker(giveBackEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if unused() >= giveBackFrom {
			debug.FreeOSMemory()
		}
	}
}

// unused is how many bytes of the heap are free or garbage, about.
func unused() uint64 {
	s := []measures.Sample{
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"},
	}
	measures.Read(s)
	free, objects, live := s[0].Value.Uint64(), s[1].Value.Uint64(), s[2].Value.Uint64()
	return free + objects - min(objects, live)
}
