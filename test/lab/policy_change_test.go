package labtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"myelin/bpf"
)

// upLabelled brings a cluster up whose pods have their own names for a label, and on whose nodes p.pass works.
func upLabelled(t *testing.T, s setup) *policed {
	t.Helper()
	s.fill()
	s.yaml = regexp.MustCompile(`(?m)^metadata: \{name: (\w+)\}$`).ReplaceAllString(s.manifests(),
		"metadata: {name: $1, labels: {name: $1}}") + barriers()
	return &policed{cluster: up(t, s)}
}

// onlyFrom is a policy by which the pods may be reached by one other alone.
func onlyFrom(name, from string, pods ...string) string {
	return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s, namespace: "+
		"default}\n"+
		"spec:\n  podSelector: {matchExpressions: [{key: name, operator: In, values: [%s]}]}\n  ingress: [{from: "+
		"[{podSelector: {matchLabels: {name: %s}}}]}]\n",
		name, strings.Join(pods, ", "), from)
}

// openTo is a version of onlyFrom that lets everybody in.
func openTo(name string, pods ...string) string {
	yaml, _, _ := strings.Cut(onlyFrom(name, "absent", pods...), "  ingress:")
	return yaml + "  ingress: [{}]\n"
}

// connection is one that was there before the policy.
type connection struct {
	name           string
	cut            bool // the policy forbids it
	client, server *net.TCPConn
}

// held opens connections that onlyFrom("only", "b2", "b1", "a2") forbids, on a node and between nodes, and some that it
// has nothing against.
func (p *policed) held() (list []connection) {
	p.t.Helper()
	for _, f := range p.stack.families {
		for _, w := range []struct {
			from, to string
			cut      bool
		}{{"a1", "b1", true}, {"a1", "a2", true}, {"b2", "b1", false}, {"b2", "a2", false}, {"a1", "b2", false}} {
			to := p.end(w.to)
			client, server, err := connect(p.t.Context(), p.end(w.from), to, netip.AddrPort{}, at(to.addr(f), 0))
			check(p.t, err)
			p.t.Cleanup(func() { client.Close(); server.Close() })
			list = append(list, connection{fmt.Sprintf("IPv%d %s→%s", f, w.from, w.to), w.cut, client, server})
		}
	}
	return list
}

// exchange sends a byte there and back.
func (c connection) exchange(within time.Duration) error {
	end := time.Now().Add(within)
	if err := errors.Join(c.client.SetDeadline(end), c.server.SetDeadline(end)); err != nil {
		return err
	}
	for _, way := range [][2]net.Conn{{c.client, c.server}, {c.server, c.client}} {
		if _, err := way[0].Write([]byte{1}); err != nil {
			return err
		}
		if _, err := io.ReadFull(way[1], make([]byte, 1)); err != nil {
			return err
		}
	}
	return nil
}

// told sends a byte from one end and returns what this end then hears.
func told(c net.Conn) error {
	if err := c.SetDeadline(soon()); err != nil {
		return err
	}
	if _, err := c.Write([]byte{1}); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 1))
	return err
}

// TestPolicyCutsConnections changes a policy so that it forbids connections which are there: both ends are reset, or
// their packets are dropped until the policy goes, or they are left alone, as myelin.policy.deniedFlows has it. Other
// connections go on, and no new one begins.
//
//	┌─ node1 ─────┐  ┌─ node2 ─────┐
//	│ a1 ─→ b1    │  │  a2   b2    │     b1 and a2 come to be for b2 alone
//	└──────┬──────┘  └──────┬──────┘
//	═══════╧════════════════╧═══════
func TestPolicyCutsConnections(t *testing.T) {
	for _, m := range policyModes() {
		for _, denied := range []string{"reset", "drop", "leave"} {
			if m.name != "native" && denied != "reset" {
				continue // only a reset is sent back the way that the packet came
			}
			t.Run(m.name+"/"+denied, func(t *testing.T) {
				t.Parallel()
				p := upLabelled(t, setup{mode: m, values: map[string]any{"myelin.policy.deniedFlows": denied}})
				p.enforce(t, openTo("only", "b1", "a2"))
				list := p.held()
				for _, c := range list {
					if err := c.exchange(patience(5 * time.Second)); err != nil {
						t.Fatalf("%s, before the policy: %v", c.name, err)
					}
				}
				file := p.enforce(t, onlyFrom("only", "b2", "b1", "a2"))
				for _, c := range list {
					c.holds(t, denied)
				}
				p.begins(t, false)
				check(t, p.Delete(t.Context(), file))
				p.pass(t)
				p.begins(t, true)
				for _, c := range list {
					if err := c.exchange(patience(10 * time.Second)); err != nil && !(c.cut && denied == "reset") {
						t.Errorf("%s, after the policy: %v", c.name, err)
					}
				}
			})
		}
	}
}

// holds checks what becomes of a connection under the policy.
func (c connection) holds(t *testing.T, denied string) {
	t.Helper()
	switch {
	case !c.cut || denied == "leave":
		if err := c.exchange(patience(5 * time.Second)); err != nil {
			t.Errorf("%s: %v, want it to go on", c.name, err)
		}
	case denied == "drop":
		if err := c.exchange(patience(500 * time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v, want silence", c.name, err)
		}
	default:
		for name, end := range map[string]net.Conn{"client": c.client, "server": c.server} {
			if err := told(end); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s: the %s is told %v, want a reset", c.name, name, err)
			}
		}
	}
}

// begins checks whether new connections of those that the policy forbids begin; nothing is answered where not.
func (p *policed) begins(t *testing.T, want bool) {
	t.Helper()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, f := range p.stack.families {
		for _, name := range []string{"b1", "a2"} {
			from, to := p.end("a1"), p.end(name)
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience(1500*time.Millisecond)) // one SYN, and another
				defer cancel()
				_, err := tcp(ctx, from, to, to.addr(f), 100)
				var late net.Error
				if want && err != nil || !want && !(errors.As(err, &late) && late.Timeout()) {
					t.Errorf("a new connection over IPv%d to %s: %v, want it to begin: %v", f, to.Name(), err, want)
				}
			})
		}
	}
}

// TestPolicyRefused breaks the file of a policy that is in force: its last good version stays so, and a list says why
// the new one isn't.
//
//	┌─ node1 ──────┐
//	│ a1 ─→✗ b1    │
//	└──────────────┘
func TestPolicyRefused(t *testing.T) {
	t.Parallel()
	p := upLabelled(t, setup{nodes: 2})
	p.enforce(t, onlyFrom("only", "b2", "b1", "a2"))
	p.begins(t, false)
	for bad, reason := range map[string]string{
		strings.Replace(onlyFrom("only", "a1", "b1", "a2"), "matchLabels", "matchLabel", 1):    "matchLabel",
		strings.Replace(onlyFrom("only", "a1", "b1", "a2"), "operator: In", "operator: On", 1): "operator",
	} {
		p.enforce(t, bad)
		p.begins(t, false)
		contains(t, "policy list", p.mustCLI("node1", "policy", "list"), "default/only", reason)
	}
	p.enforce(t, onlyFrom("only", "a1", "b1", "a2"))
	p.begins(t, true)
}

// TestPolicyAudit has policies report what they would deny, and let it pass.
//
//	┌─ node1 ──────┐  ┌─ node2 ──┐
//	│ a1 ─→ b1     │  │ a2       │
//	└──────────────┘  └──────────┘
func TestPolicyAudit(t *testing.T) {
	t.Parallel()
	p := upLabelled(t, setup{values: map[string]any{"policyAuditMode": true}})
	list := p.held()
	p.enforce(t, onlyFrom("only", "b2", "b1", "a2"))
	p.begins(t, true)
	for _, c := range list {
		c.holds(t, "leave")
	}
	for _, node := range []string{"node1", "node2"} {
		if p.outcome(node, bpf.DatapathOutcomeFORWARD_AUDIT) == 0 {
			t.Errorf("%s reports nothing that a policy would deny", node)
		}
		for _, o := range []bpf.DatapathOutcome{bpf.DatapathOutcomeDROP_POLICY_DENIED,
			bpf.DatapathOutcomeDROP_POLICY_NO_RULE} {
			if n := p.outcome(node, o); n > 0 {
				t.Errorf("%s has dropped %d packets for a policy", node, n)
			}
		}
	}
}
