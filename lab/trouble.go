package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// steady is how long a container must have run not to be looked at again.
	steady = 500 * time.Millisecond
	// recovery bounds how long something may be broken in an agent that has just started.
	recovery = 3 * time.Second
)

// Troubles are what Up does not wait for, since waiting does not cure it: pods that crash-loop, objects that agents
// reject, and what agents say is broken, such as a device that is not there. It takes half a second after the last pod
// was started, and some seconds where something is broken.
func (l *Lab) Troubles(ctx context.Context) ([]string, error) {
	troubles, err := l.crashLoops(ctx)
	if err != nil {
		return nil, err
	}
	objects, err := l.objects()
	if err != nil {
		return nil, err
	}
	changes := make([]Change, len(objects))
	for i, o := range objects {
		changes[i] = Change{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
	}
	if err := l.verdicts(ctx, objects, changes); err != nil {
		return nil, err
	}
	for _, c := range changes {
		if c.Rejected != "" {
			troubles = append(troubles, c.String())
		}
	}
	states, err := l.podStates()
	if err != nil {
		return nil, err
	}
	troubles = append(troubles, l.unschedulable(objects, states)...)
	nodes := l.Nodes()
	broken := make([][]string, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		if n.AgentProcess().Alive() {
			wg.Go(func() { broken[i] = n.broken(ctx) })
		}
	}
	wg.Wait()
	return append(troubles, slices.Concat(broken...)...), nil
}

// unschedulable names the Pods that no node suits.
func (l *Lab) unschedulable(objects []*object, states []PodState) (lines []string) {
	c := l.clusterOf(objects, states)
	for _, pod := range c.Pods {
		if err := c.Unschedulable(pod); err != nil {
			lines = append(lines, fmt.Sprintf("pod %s/%s is not scheduled: %s", pod.Namespace, pod.Name, err))
		}
	}
	return lines
}

// crashLoops names the containers that end again and again.
func (l *Lab) crashLoops(ctx context.Context) ([]string, error) {
	desired, err := l.desired()
	if err != nil {
		return nil, err
	}
	for {
		states, err := l.podStates()
		if err != nil {
			return nil, err
		}
		var loops []string
		young := false
		for _, s := range states {
			young = young || time.Since(s.Started) < steady && s.Phase == "Running"
			if pod := desired[s.key()]; pod != nil {
				loops = append(loops, l.loops(pod, s)...)
			}
		}
		if !young || ctx.Err() != nil {
			return loops, ctx.Err()
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (l *Lab) loops(pod *corev1.Pod, s PodState) (loops []string) {
	for _, c := range s.Containers {
		if c.Init || s.Phase != "Running" ||
			c.Restarts == 0 && !(c.Exited && again(pod.Spec.RestartPolicy, c.ExitCode)) {
			continue
		}
		status := c.LastExitCode
		if c.Exited {
			status = c.ExitCode
		}
		text := fmt.Sprintf("pod %s crash-loops: container %s was restarted %d times, last status %d", s.key(), c.Name,
			c.Restarts, status)
		if c.Message != "" {
			text += ": " + c.Message
		} else {
			text += "; " + lastLines(l.containerLog(s.Node, s.Namespace, s.Name, c.Name), 3)
		}
		loops = append(loops, text)
	}
	return loops
}

// broken is what the node's agent says is broken, and stays so for a while.
func (n *Node) broken(ctx context.Context) []string {
	for end := time.Now().Add(recovery); ; {
		broken, err := n.brokenNow(ctx)
		if err != nil {
			broken = []string{err.Error()}
		}
		if len(broken) == 0 || ctx.Err() != nil || time.Now().After(end) {
			return broken
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (n *Node) brokenNow(ctx context.Context) (broken []string, err error) {
	report, err := n.report(ctx)
	if err != nil {
		return nil, err
	}
	for _, f := range report.Features {
		// Each rejected object has a line of its own.
		problems := slices.DeleteFunc(f.Problems, func(p string) bool { return strings.HasPrefix(p, "refused: ") })
		if f.State == "broken" && len(problems) > 0 {
			broken = append(broken, fmt.Sprintf("%s: %s is broken: %s", n.name, f.Name, strings.Join(problems, "; ")))
		}
	}
	return broken, nil
}
