package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"sigs.k8s.io/yaml"

	apiv1 "myelin/api/v1"
)

// startAgents starts the agents of all nodes and waits until all are ready.
func (l *Lab) startAgents(ctx context.Context) error {
	if l.opts.Agent == "" {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, n := range l.Nodes() {
		g.Go(func() error {
			if err := n.StartAgent(ctx, nil); err != nil {
				return err
			}
			l.progress("agent of %s is ready", n.Name())
			return nil
		})
	}
	return g.Wait()
}

// StartAgent starts the node's agent and waits until it is ready. Values are dotted keys ("bpf.masquerade") that go
// over those of the lab; they hold until the next StartAgent. One that runs already is an error.
func (n *Node) StartAgent(ctx context.Context, values map[string]any) error {
	if n.err != nil {
		return n.err
	}
	if p := n.AgentProcess(); p.Alive() {
		return fmt.Errorf("agent of %s runs already, as process %d", n.name, p.PID)
	}
	if err := n.writeConfig(values); err != nil {
		return fmt.Errorf("configure agent of %s: %w", n.name, err)
	}
	d := daemon{
		argv: []string{n.lab.opts.Agent, "agent", "--config", n.path("agent.yaml")},
		env:  n.lab.environment(),
		dir:  n.Dir(),
		log:  n.AgentLog(),
		cg:   n.cg.join("_agent"),
	}
	p, _, err := d.start(n.netns)
	if err == nil {
		err = writeJSON(n.path("agent.pid"), p)
	}
	if err != nil {
		return fmt.Errorf("start agent of %s: %w", n.name, err)
	}
	return n.waitAgent(ctx)
}

// AgentProcess is the agent that was started last; it may have ended.
func (n *Node) AgentProcess() Process { return readPID(n.path("agent.pid")) }

// AgentLog is the file that the node's agents write to, all after one another.
func (n *Node) AgentLog() string { return n.path("agent.log") }

// obstacleLimit is how long an agent may report an obstacle to its start before waitAgent gives up.
const obstacleLimit = 2 * time.Second

// obstacle is what an agent says that its start waits for.
type obstacle struct{ Reason, Help string }

func (o *obstacle) Error() string { return fmt.Sprintf("it waits: %s (%s)", o.Reason, o.Help) }

// waitAgent waits until the agent is ready: it says so, and its CNI configuration is there, unless it is a load
// balancer without pods (loadBalancer.standalone). If the agent ends instead, says for two seconds that its start can't
// go on, or ctx ends, the error says why, or has the last lines of its log.
func (n *Node) waitAgent(ctx context.Context) error {
	if n.err != nil {
		return n.err
	}
	var stuck time.Time // since when there is an obstacle
	for {
		ready := n.agentReady(ctx)
		if ready == nil {
			return nil
		}
		if !n.AgentProcess().Alive() {
			return fmt.Errorf("agent of %s has ended: %s", n.name, lastLines(n.AgentLog(), 5))
		}
		_, waits := errors.AsType[*obstacle](ready)
		switch {
		case !waits:
			stuck = time.Time{}
		case stuck.IsZero():
			stuck = time.Now()
		case time.Since(stuck) > obstacleLimit:
			return fmt.Errorf("agent of %s is not ready: %w", n.name, ready)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("agent of %s: %w: %w: %s", n.name, ctx.Err(), ready, lastLines(n.AgentLog(), 5))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// config reads the agent's configuration file.
func (n *Node) config() (map[string]any, error) {
	data, err := os.ReadFile(n.path("agent.yaml"))
	if err != nil {
		return nil, err
	}
	keys := map[string]any{}
	return keys, yaml.Unmarshal(data, &keys)
}

// agentReady says what is missing. An agent that waits in its start answers, too: an *obstacle says for what.
func (n *Node) agentReady(ctx context.Context) error {
	keys, err := n.config()
	if err != nil {
		return err
	}
	report, err := n.report(ctx)
	if err != nil {
		return err
	}
	if w := report.Waiting; w != nil && w.Reason != "" {
		return w
	}
	if report.ReadyMs == 0 {
		return errors.New("it is starting")
	}
	if !standalone(keys) {
		_, _, err = n.conflist()
	}
	return err
}

// agentReport is the part of an agent's status that the lab uses.
type agentReport struct {
	ReadyMs  float64
	Waiting  *obstacle
	Features []struct {
		Name, State string
		Problems    []string
	}
}

// answerLimit bounds how long an agent may take to tell its status.
const answerLimit = 5 * time.Second

// maxReport bounds a status, in bytes.
const maxReport = 64 << 20

// report asks the node's agent for its status.
func (n *Node) report(ctx context.Context) (*agentReport, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	r := &agentReport{}
	return r, n.ask(func(client apiv1.AgentClient) error {
		answer, err := client.Status(ctx, &apiv1.StatusRequest{}, grpc.MaxCallRecvMsgSize(maxReport))
		if err != nil {
			return err
		}
		return json.Unmarshal(answer.GetJson(), r)
	})
}

// StopAgent asks the agent to end (SIGTERM) and waits for it, until ctx ends. One that does not run is no error.
func (n *Node) StopAgent(ctx context.Context) error { return n.endAgent(ctx, unix.SIGTERM) }

// KillAgent ends the agent at once (SIGKILL) and waits until it is gone.
func (n *Node) KillAgent(ctx context.Context) error { return n.endAgent(ctx, unix.SIGKILL) }

// RestartAgent stops the agent and starts it with the lab's configuration.
func (n *Node) RestartAgent(ctx context.Context) error {
	if err := n.StopAgent(ctx); err != nil {
		return err
	}
	return n.StartAgent(ctx, nil)
}

func (n *Node) endAgent(ctx context.Context, sig unix.Signal) error {
	if n.err != nil {
		return n.err
	}
	p := n.AgentProcess()
	if err := p.signal(sig); err != nil {
		return fmt.Errorf("end agent of %s: %w", n.name, err)
	}
	if err := p.wait(ctx); err != nil {
		return fmt.Errorf("end agent of %s: %w", n.name, err)
	}
	return nil
}

// wait returns when the process has ended, or ctx has.
func (p Process) wait(ctx context.Context) error {
	for p.Alive() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d runs still: %w", p.PID, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// writeConfig writes the agent's file: the lab's template, then its values, then values, then what makes it this
// node's.
func (n *Node) writeConfig(values map[string]any) error {
	keys, err := n.lab.configKeys()
	if err != nil {
		return err
	}
	own := map[string]any{
		"myelin.nodeName":   n.name,
		"myelin.runDir":     n.RunDir(),
		"myelin.bpfRoot":    n.BPFRoot(),
		"myelin.cgroupRoot": string(n.cg),
		"myelin.manifests":  n.lab.Manifests(),
		"cni.confPath":      n.path("cni", "net.d"),
		"cni.binPath":       n.path("cni", "bin"),
	}
	for _, from := range []map[string]any{values, own} {
		if err := setKeys(keys, from); err != nil {
			return err
		}
	}
	if myelin, ok := keys["myelin"].(map[string]any); ok && standalone(keys) {
		delete(myelin, "manifests")
	}
	data, err := yaml.Marshal(keys)
	if err != nil {
		return err
	}
	return writeFile(n.path("agent.yaml"), data)
}

// configKeys is the configuration that all agents of the lab get.
func (l *Lab) configKeys() (map[string]any, error) {
	keys := map[string]any{}
	if file := l.opts.Config; file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		template := map[string]any{}
		if err := yaml.Unmarshal(data, &template); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if err := setKeys(keys, template); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return keys, setKeys(keys, l.opts.Values)
}

// standalone reports whether an agent with these keys is a load balancer without a cluster.
func standalone(keys map[string]any) bool {
	lb, ok := keys["loadBalancer"].(map[string]any)
	return ok && lb["standalone"] == true
}

// setKeys merges from into keys, dotted keys as the nested maps that they stand for.
func setKeys(keys, from map[string]any) error {
	for _, dotted := range slices.Sorted(maps.Keys(from)) {
		key, rest, isDotted := strings.Cut(dotted, ".")
		nested, isMap := from[dotted].(map[string]any)
		if isDotted {
			nested, isMap = map[string]any{rest: from[dotted]}, true
		}
		if !isMap {
			keys[key] = from[dotted]
			continue
		}
		inner, ok := keys[key].(map[string]any)
		if !ok && keys[key] != nil {
			return fmt.Errorf("%s: %s has the value %v already", dotted, key, keys[key])
		}
		if inner == nil {
			inner = map[string]any{}
			keys[key] = inner
		}
		if err := setKeys(inner, nested); err != nil {
			return err
		}
	}
	return nil
}

// lastLines is the end of a log, for an error message.
func lastLines(file string, n int) string {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) || len(data) == 0 {
		return "its log is empty"
	}
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return "its log ends: " + strings.Join(lines[max(0, len(lines)-n):], "\n")
}
