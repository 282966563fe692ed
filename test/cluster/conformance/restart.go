package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// restartEvery is how long an agent runs between two ends.
const restartEvery = 15 * time.Second

// restarter ends a node's agent again and again, by SIGTERM and SIGKILL in turn, and starts it.
type restarter struct {
	cluster, node string
	// count is how often it did, err what failed: to be read once done is closed
	count int
	err   error
	done  chan struct{}
}

// restart begins, and goes on until ctx ends; the agent runs then. Without a node nothing happens.
func restart(ctx context.Context, cluster, node string) *restarter {
	r := &restarter{cluster: cluster, node: node, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		for node != "" && r.err == nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(restartEvery):
			}
			end := []string{"stop", "kill"}[r.count%2]
			if r.err = r.agent(end); r.err == nil {
				r.err = r.agent("start")
			}
			r.count++
		}
	}()
	return r
}

// wait waits until the last restart is over, and says how many there were.
func (r *restarter) wait() (int, error) {
	<-r.done
	return r.count, r.err
}

func (r *restarter) agent(what string) error {
	cmd := exec.Command(r.cluster, "agent", what, r.node)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("agent %s %s: %w", what, r.node, err)
	}
	return nil
}
