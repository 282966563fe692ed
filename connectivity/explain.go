package connectivity

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// mostLines bounds what one agent says of one failure.
const mostLines = 14

// explain makes failures of what went wrong, and asks the agents about the first
// few.
func (r *runner) explain(ctx context.Context, s step, failed []wrong) (list []Failure) {
	for i, w := range failed {
		f := Failure{
			Step: s.what, From: fmt.Sprintf("%s on %s", w.from, w.from.node), To: w.to, URL: w.probe.URL,
			Problem: w.problem,
		}
		if i < explained {
			f.Explanation = r.ask(ctx, w)
		}
		list = append(list, f)
	}
	return list
}

// ask has a failed check made once more, between two looks at what the agents of both
// ends have dropped, and asks what policies say of it.
func (r *runner) ask(ctx context.Context, w wrong) (lines []string) {
	if r.facts.agents.missing != "" {
		return []string{r.facts.agents.missing}
	}
	if err := r.refresh(ctx, &r.facts.agents); err != nil {
		return []string{err.Error()}
	}
	nodes := []string{w.from.node}
	ends := []string{r.facts.near, r.facts.far} // of a Service, each may be the other one
	if w.target != nil {
		ends = []string{w.target.node}
	}
	for _, end := range ends {
		if !slices.Contains(nodes, end) {
			nodes = append(nodes, end)
		}
	}
	before := map[string]map[string]drops{}
	for _, node := range nodes {
		before[node], _ = r.drops(ctx, node)
	}
	switch answers, err := r.probe(ctx, w.from, []check{w.check}); {
	case err != nil:
	case w.verdict(answers[0]) == "":
		lines = append(lines, "tried once more it went well")
	default:
		lines = append(lines, "tried once more it was the same")
	}
	for _, node := range nodes {
		lines = append(lines, r.dropped(ctx, node, before[node])...)
	}
	// What the receiver's node says is enough, as policies are the cluster's.
	return append(lines, r.trace(ctx, nodes[len(nodes)-1], w)...)
}

// dropped is what a node's datapath dropped since before.
func (r *runner) dropped(ctx context.Context, node string, before map[string]drops) (lines []string) {
	after, err := r.drops(ctx, node)
	if err != nil {
		return []string{fmt.Sprintf("node %s: %v", node, err)}
	}
	var keys []string
	for key, now := range after {
		if now.Packets > before[key].Packets {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		now, was := after[key], before[key]
		lines = append(lines, fmt.Sprintf("node %s dropped %d packets at %s: %s. %s", node, now.Packets-was.Packets,
			now.Hook, now.Reason, now.What))
		for _, rule := range now.Rules {
			if rule.Hits > was.hits(rule) {
				lines = append(lines, fmt.Sprintf("  by %s of %s: %s", rule.Direction,
					strings.Join(rule.Endpoints, ", "), rule.Place))
			}
		}
	}
	if len(keys) == 0 {
		lines = append(lines, fmt.Sprintf("node %s: the agent is ready, and its datapath dropped nothing meanwhile",
			node))
	}
	return lines
}

// drops is a row of `myelin drops -o json`.
type drops struct {
	Hook, Name, Reason, What string
	Packets                  uint64
	Rules                    []ruleHits
}

type ruleHits struct {
	Direction, Place string
	Endpoints        []string
	Hits             uint64
}

// hits are those of a rule that was there.
func (d drops) hits(of ruleHits) uint64 {
	for _, r := range d.Rules {
		if r.Place == of.Place && r.Direction == of.Direction && slices.Equal(r.Endpoints, of.Endpoints) {
			return r.Hits
		}
	}
	return 0
}

// agent runs a command of the node's agent's pod.
func (r *runner) agent(ctx context.Context, node string, args ...string) (string, error) {
	a, ok := r.facts.agents.pods[node]
	switch {
	case !ok:
		return "", fmt.Errorf("no agent runs there (no pod of DaemonSet %s/myelin)", r.facts.agents.namespace)
	case a.problem != "":
		return "", fmt.Errorf("its agent %s is not ready: %s", &a, a.problem)
	}
	ctx, cancel := context.WithTimeout(ctx, execTime)
	defer cancel()
	return r.Exec(ctx, a.namespace, a.name, append([]string{"/myelin"}, args...)...)
}

// agentJSON is agent for a command that lists in JSON. What it prints counts, also if it fails: `myelin status` does so
// if something is broken.
func (r *runner) agentJSON(ctx context.Context, node string, out any, command ...string) error {
	text, failed := r.agent(ctx, node, append(command, "-o", "json")...)
	err := json.Unmarshal([]byte(text), out)
	switch {
	case err != nil && failed != nil:
		return failed
	case err != nil:
		return fmt.Errorf("read the output of myelin %s: %w", strings.Join(command, " "), err)
	}
	return nil
}

func (r *runner) drops(ctx context.Context, node string) (map[string]drops, error) {
	var rows []drops
	if err := r.agentJSON(ctx, node, &rows, "drops"); err != nil {
		return nil, err
	}
	all := map[string]drops{}
	for _, row := range rows {
		all[row.Hook+" "+row.Name] = row
	}
	return all, nil
}

// trace is what policies say of a check of one pod at one address.
func (r *runner) trace(ctx context.Context, node string, w wrong) []string {
	if !w.at.IsValid() {
		return nil
	}
	text, err := r.agent(ctx, node, "policy", "trace", "--from", party(w.from, w.from.ip(w.at)), "--to",
		party(w.target, w.at), "--port", w.port)
	if text == "" {
		return []string{fmt.Sprintf("node %s: policies can't be traced: %v", node, err)}
	}
	verdict, ways, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if verdict == "ALLOWED" && !w.deny {
		return []string{fmt.Sprintf("node %s: policies allow it", node)}
	}
	lines := []string{fmt.Sprintf("node %s: policies say %s", node, strings.ToLower(verdict))}
	for line := range strings.Lines(ways) {
		if line = strings.TrimRight(line, "\n"); !strings.HasPrefix(strings.TrimSpace(line), "looked at ") {
			lines = append(lines, "  "+line)
		}
	}
	if len(lines) > mostLines {
		lines = append(lines[:mostLines], "  …")
	}
	return lines
}

// party is a pod as `myelin policy trace` takes it.
func party(p *pod, a netip.Addr) string {
	if p.host {
		return "node/" + p.node
	}
	return a.String()
}
