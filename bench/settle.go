package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// settle waits until the machine's processors did next to nothing for as long as quiet. What an agent's start and the
// end of the scenario before still have to do would otherwise be counted in the path, as there is one processor for
// everything.
func settle(ctx context.Context, quiet time.Duration) error {
	const patience = 60
	for range patience {
		before, err := readCPU()
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(quiet):
		}
		after, err := readCPU()
		if err != nil {
			return err
		}
		if busy, all := after.busy-before.busy, after.all-before.all; all > 0 && busy*50 <= all {
			return nil
		}
	}
	return errors.New("wait for the machine to settle: something keeps its processors busy by more than 2 %")
}

// NoHugePages stops khugepaged for good, which joins pages of whatever has a large heap, as agents have, for
// milliseconds in the middle of a run of 70 ms: one run in eight was off by 3 to 12 %. It is for the VM, whose kernel
// nothing else uses.
func NoHugePages() error {
	err := os.WriteFile("/sys/kernel/mm/transparent_hugepage/enabled", []byte("never"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without them
		return fmt.Errorf("switch huge pages off: %w", err)
	}
	return nil
}

// cpu is how long processors were busy, and in all, since boot, in ticks.
type cpu struct{ busy, all uint64 }

func readCPU() (cpu, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpu{}, err
	}
	return parseCPU(string(text))
}

func parseCPU(stat string) (cpu, error) {
	var user, nice, system, idle, iowait, irq, softirq uint64
	if _, err := fmt.Sscanf(stat, "cpu %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq,
		&softirq); err != nil {
		return cpu{}, fmt.Errorf("read /proc/stat: %w", err)
	}
	busy := user + nice + system + irq + softirq
	return cpu{busy: busy, all: busy + idle + iowait}, nil
}
