package connectivity

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
)

// encryption is what the agents say of it.
type encryption struct {
	off     string // why the tests are skipped; empty: packets between nodes are encrypted
	unknown string // why that is not known
	nodes   bool   // traffic between the nodes themselves is encrypted, too
	// wires are the names of the devices that lead to other nodes, by node, without those that encrypt or tunnel.
	wires map[string][]string
	watch watch
}

// encryptedNode is a row of `myelin encrypt status -o json`.
type encryptedNode struct {
	Node, Why, NodeTraffic string
	Encrypted              bool
}

// learnEncryption asks the agents of both nodes.
func (r *runner) learnEncryption(ctx context.Context) {
	e := &r.facts.encryption
	id := rand.Uint32()
	e.watch = watch{secret: fmt.Sprintf("myelin-secret-%08x", id), canary: fmt.Sprintf("myelin-canary-%08x", id)}
	if e.off = r.facts.agents.missing; e.off != "" {
		return
	}
	if err := r.refresh(ctx, &r.facts.agents); err != nil {
		e.unknown = err.Error()
		return
	}
	e.wires = map[string][]string{}
	for _, node := range []string{r.facts.near, r.facts.far} {
		if _, ok := r.facts.agents.pods[node]; !ok {
			e.off = "no agent runs on node " + node
			return
		}
		if err := r.learnNode(ctx, node); err != nil {
			e.unknown = fmt.Sprintf("node %s: %v", node, err)
			return
		}
	}
}

// learnNode asks a node's agent whether it encrypts, and by which devices packets leave.
func (r *runner) learnNode(ctx context.Context, node string) error {
	var report struct {
		Features []struct{ Name, State string }
	}
	if err := r.agentJSON(ctx, node, &report, "status"); err != nil {
		return err
	}
	e := &r.facts.encryption
	for _, f := range report.Features {
		if f.Name == "Encryption" && f.State == "off" {
			e.off = "encryption.enabled is false"
			return nil
		}
	}
	var wires []struct {
		Name              string
		Tunnel, Encrypted bool
	}
	if err := r.agentJSON(ctx, node, &wires, "route", "wires"); err != nil {
		return err
	}
	for _, w := range wires {
		if !w.Tunnel && !w.Encrypted {
			e.wires[node] = append(e.wires[node], w.Name)
		}
	}
	other, err := r.encryptionTo(ctx, node)
	e.nodes = other.NodeTraffic == "encrypted"
	return err
}

// encryptionTo is what a node's agent says of packets to the other node.
func (r *runner) encryptionTo(ctx context.Context, node string) (encryptedNode, error) {
	var rows []encryptedNode
	if err := r.agentJSON(ctx, node, &rows, "encrypt", "status"); err != nil {
		return encryptedNode{}, err
	}
	other := r.facts.otherNode(node)
	i := slices.IndexFunc(rows, func(row encryptedNode) bool { return row.Node == other })
	if i < 0 {
		return encryptedNode{}, fmt.Errorf("myelin encrypt status: node %s is missing", other)
	}
	return rows[i], nil
}

// explainEncryption explains a failure by what a node's agent says.
func (r *runner) explainEncryption(ctx context.Context, node string) []string {
	to, err := r.encryptionTo(ctx, node)
	switch {
	case err != nil:
		return []string{fmt.Sprintf("node %s: %v", node, err)}
	case !to.Encrypted:
		return []string{fmt.Sprintf("node %s: packets to %s are not encrypted: %s", node, to.Node, to.Why)}
	}
	return []string{fmt.Sprintf("node %s: the agent says that packets to %s are encrypted", node, to.Node)}
}

func (f *facts) otherNode(node string) string {
	if node == f.near {
		return f.far
	}
	return f.near
}

// encrypted are tests of what travels between two nodes, which is captured there.
func (p *planner) encrypted() {
	pods := p.reach(p.client, p.distant)
	for _, c := range p.reach(p.client, p.distant) {
		if strings.HasPrefix(c.probe.URL, "udp:") {
			c.probe.Size, c.to = 4000, c.to+", 4,000 bytes in fragments"
			pods = append(pods, c)
		}
	}
	for _, a := range p.addressesOf("echo") {
		pods = append(pods, p.toService(p.client, "echo", a, httpPort, []string{p.server.name, p.distant.name})...)
	}
	p.watched("encryption/pods", "What pods of two nodes send each other travels encrypted.", "", pods)
	p.watched("encryption/pods-and-nodes", "What a pod and another node send each other travels encrypted.", "",
		slices.Concat(p.reach(p.client, p.farHost), p.reach(p.nearHost, p.distant)))
	skip := ""
	if !p.encryption.nodes && p.encryption.unknown == "" {
		skip = "encryption.nodeEncryption is false, or a node opts out"
	}
	p.watched("encryption/nodes", "What nodes send each other travels encrypted.", skip,
		p.reach(p.nearHost, p.farHost))
}

// watched adds a test whose checks send the secret. Unless nodes encrypt all that they send each other, they send the
// canary, too.
func (p *planner) watched(name, about, skip string, checks []check) {
	e := &p.encryption
	skip = cmp.Or(e.off, p.oneNode(), skip)
	w := e.watch
	for i := range checks {
		checks[i].probe.mark(w.secret)
	}
	if e.nodes {
		w.canary = ""
	} else {
		for _, a := range p.farHost.addrs {
			at := netip.AddrPortFrom(a, p.farHost.ports.udp)
			canary := p.farHost.check(p.nearHost, a, fmt.Sprintf("%d/UDP", at.Port()), "udp://"+at.String())
			canary.probe.mark(w.canary)
			checks = append(checks, canary)
		}
	}
	p.add(name, about, skip, step{checks: checks})
	t := &p.tests[len(p.tests)-1]
	t.watch = &w
	if skip == "" {
		t.broken = cmp.Or(t.broken, e.unknown)
	}
}

// mark has what the probe sends carry a text.
func (p *Probe) mark(text string) {
	if strings.HasPrefix(p.URL, "http:") {
		p.URL += text
		return
	}
	p.Text = text
}
