package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// disturbEvery is how long a cluster is left alone after it has been disturbed.
const disturbEvery = 15 * time.Second

// disturber runs a program again and again, with the number of the round.
type disturber struct {
	program string
	// rounds is how often it ran, err what failed: to be read once done is closed
	rounds int
	err    error
	done   chan struct{}
}

// disturb begins, and goes on until ctx ends or the program fails; a round that has begun is brought to its end.
// Without a program nothing happens.
func disturb(ctx context.Context, program string) *disturber {
	d := &disturber{program: program, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		for program != "" && d.err == nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(disturbEvery):
			}
			d.err = d.round()
		}
	}()
	return d
}

// round doesn't end with the suite: the cluster is left whole.
func (d *disturber) round() error {
	cmd := exec.Command(d.program, strconv.Itoa(d.rounds))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	d.rounds++
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("round %d of %s: %w", d.rounds, d.program, err)
	}
	return nil
}

// wait waits until the last round is over, and says how many there were.
func (d *disturber) wait() (int, error) {
	<-d.done
	return d.rounds, d.err
}
