package labtest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// rejectedCluster has a client and a stranger on one node, and web on the other,
// which listens.
type rejectedCluster struct {
	*cluster
	client, stranger, web end
}

// reaches reports whether a pod connects to web, by each family.
func (r *rejectedCluster) reaches(from end) error {
	for _, f := range r.stack.families {
		conn, err := dialFrom(from, netip.AddrPortFrom(r.web.addr(f), 8080))
		if err != nil {
			return fmt.Errorf("IPv%d: %w", f, err)
		}
		conn.Close()
	}
	return nil
}

// never checks that a pod connects by no family, whenever it tries for a while.
func (r *rejectedCluster) never(what string, from end) {
	r.t.Helper()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		for _, f := range r.stack.families {
			if conn, err := dialFrom(from, netip.AddrPortFrom(r.web.addr(f), 8080)); err == nil {
				conn.Close()
				r.t.Fatalf("%s: IPv%d: %s is reached", what, f, from.addr(f))
			}
		}
	}
}

// state waits until a node's list says of a policy what is wanted.
func (r *rejectedCluster) state(node, name, want string) {
	r.t.Helper()
	eventually(r.t, "the state of "+name, 10*time.Second, func() error {
		for line := range strings.Lines(r.mustCLI(node, "policy", "list")) {
			if strings.Contains(line, name) && strings.Contains(line, want) {
				return nil
			}
		}
		return errors.New("it is not " + want)
	})
}

// enforced checks that only the client reaches web.
func (r *rejectedCluster) enforced(what string) {
	r.t.Helper()
	eventually(r.t, what+": the client connects", 10*time.Second, func() error { return r.reaches(r.client) })
	r.never(what, r.stranger)
}

// restart ends the agent of web's node, and starts another.
func (r *rejectedCluster) restart() {
	r.t.Helper()
	check(r.t, r.Node("node2").RestartAgent(r.t.Context()))
}

// TestPolicyRejected applies policies that are refused, or of which a part is not
// enforced, as new ones, as updates and before a restart: nothing passes by them.
//
//	┌─ node1 ────────────┐  ┌─ node2 ──────┐
//	│ client   stranger  │  │ web          │
//	└─────────┬──────────┘  └──────┬───────┘
//	══════════╧════════════════════╧════════
func TestPolicyRejected(t *testing.T) {
	t.Parallel()
	c := up(t, setup{mode: modeNamed("native"), pods: []string{"a"}})
	c.apply("pods", labelled("client", 1)+labelled("stranger", 1)+labelled("web", 2))
	r := &rejectedCluster{c, c.end("client"), c.end("stranger"), c.end("web")}
	var listener net.Listener
	check(t, r.web.Do(func() (err error) {
		listener, err = net.Listen("tcp", ":8080")
		return err
	}))
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	eventually(t, "all reach web", 10*time.Second, func() error {
		return errors.Join(r.reaches(r.client), r.reaches(r.stranger))
	})
	t.Run("last good", r.lastGood)
	t.Run("not enforced", r.notEnforced)
	t.Run("closed", r.closed)
	t.Run("spelling", r.spelling)
	c.t = t
}

// lastGood: a policy that becomes a refused one, and then an empty file, is in force as
// it was, over restarts.
func (r *rejectedCluster) lastGood(t *testing.T) {
	r.t = t
	file := filepath.Join(r.Manifests(), "web.yaml")
	check(t, os.WriteFile(file, []byte(webPolicy("client", 8080)), 0o644))
	r.state("node2", "default/web", "accepted")
	r.enforced("good")
	check(t, os.WriteFile(file, []byte(strings.Replace(webPolicy("stranger", 8080), "port: 8080", "port: 99999",
		1)), 0o644))
	r.state("node2", "default/web", "refused, the last good version is in force: spec.ingress[0].ports[0].port: 99999")
	r.enforced("refused")
	r.restart()
	r.state("node2", "default/web", "refused, the last good version is in force: spec.ingress[0].ports[0].port: 99999")
	r.enforced("refused, restarted")
	check(t, os.Truncate(file, 0))
	r.state("node2", "default/web", "its file can't be read: web.yaml: has no document")
	r.enforced("emptied")
	r.restart()
	r.enforced("emptied, restarted")
	status, err := r.cli("node2", "status", "-o", "json")
	if err == nil {
		t.Error("the exit status of a node whose manifests are refused is 0")
	}
	contains(t, "status", status, "NetworkPolicy default/web: ", "(the last good version is in force)")
	check(t, os.Remove(file))
	eventually(t, "without it all reach web", 10*time.Second, func() error { return r.reaches(r.stranger) })
}

// notEnforced: a rule of groups isolates, and the trace says why nothing passes.
func (r *rejectedCluster) notEnforced(t *testing.T) {
	r.t = t
	file := filepath.Join(r.Manifests(), "groups.yaml")
	check(t, os.WriteFile(file, []byte(`apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: groups}
spec:
  endpointSelector: {matchLabels: {app: stranger}}
  egress: [{toGroups: [{aws: {securityGroupsIds: [sg-1]}}]}]
`), 0o644))
	r.state("node1", "default/groups", "partly enforced: spec.egress[0].toGroups: toGroups is not supported")
	r.never("groups", r.stranger)
	check(t, r.reaches(r.client))
	out, err := r.cli("node1", "policy", "trace", "--from", "default/stranger", "--to", "default/web", "--port", "8080")
	if err == nil || !strings.Contains(err.Error(), ": exit status 1") {
		t.Errorf("the trace of what is denied ends with %v", err)
	}
	contains(t, "trace", out, "DENIED", "isolated by CiliumNetworkPolicy default/groups",
		"not enforced: spec.egress[0].toGroups: toGroups is not supported")
	if _, err := r.cli("node1", "policy", "trace", "--from", "default/none", "--to", "default/web", "--port",
		"8080"); err == nil || !strings.Contains(err.Error(), ": exit status 2") {
		t.Errorf("the trace of a pod that is not there ends with %v", err)
	}
	check(t, os.Remove(file))
	eventually(t, "without it all reach web", 10*time.Second, func() error { return r.reaches(r.stranger) })
}

// closed: a policy that was never good isolates, and is not opened by a restart.
func (r *rejectedCluster) closed(t *testing.T) {
	r.t = t
	file := filepath.Join(r.Manifests(), "web.yaml")
	check(t, os.WriteFile(file, []byte(strings.Replace(webPolicy("client", 8080), "{app: client}", "{app: [client]}",
		1)), 0o644))
	r.state("node2", "default/web", "refused, what is not understood allows nothing")
	r.never("closed", r.stranger)
	r.never("closed", r.client)
	r.restart()
	r.never("closed, restarted", r.stranger)
	check(t, os.Remove(file))
	eventually(t, "without it all reach web", 10*time.Second, func() error { return r.reaches(r.stranger) })
}

// spelling: CIDRs are read as Kubernetes reads them.
func (r *rejectedCluster) spelling(t *testing.T) {
	r.t = t
	file := filepath.Join(r.Manifests(), "spelling.yaml")
	var blocks []string
	for _, f := range r.stack.families {
		a := r.web.addr(f)
		if a.Is4() {
			b := a.As4()
			blocks = append(blocks, fmt.Sprintf("{ipBlock: {cidr: %03d.%03d.%03d.%03d/24}}", b[0], b[1], b[2], b[3]))
			blocks = append(blocks, fmt.Sprintf(`{ipBlock: {cidr: "::ffff:%s/128"}}`, a))
			continue
		}
		blocks = append(blocks, fmt.Sprintf("{ipBlock: {cidr: %q}}", a.String()+"/128"))
	}
	policy := func(app, to string) string {
		return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s}\n"+
			"spec: {podSelector: {matchLabels: {app: %s}}, policyTypes: [Egress], egress: [{to: [%s]}]}\n---\n", app,
			app, to)
	}
	check(t, os.WriteFile(file, []byte(policy("client", strings.Join(blocks, ", "))+policy("stranger",
		"{ipBlock: {cidr: 010.099.02.0/24}}")), 0o644))
	r.state("node1", "default/stranger", "accepted")
	r.never("another prefix", r.stranger)
	eventually(t, "the client connects", 10*time.Second, func() error { return r.reaches(r.client) })
	check(t, os.Remove(file))
}
