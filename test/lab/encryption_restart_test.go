package labtest

import (
	"fmt"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// TestEncryptionRestart is TestRestart with encryption: nothing is lost, and where a process encrypts, it is the same
// one at the end.
//
//	┌─ node1 ─────────────────┐  ┌─ node2 ───────┐
//	│ a1 ⇄ b1                 │  │               │
//	│ a1 ⇄────── WireGuard ───┼──┼─⇄ a2          │
//	│ a1 ⇄─┐ as node1   agent │  │         agent │     agents restart, die, are upgraded, change map sizes
//	└──────┼──────────────────┘  └───────────────┘
//	═══════╧═ world ══════════════════════════════
func TestEncryptionRestart(t *testing.T) {
	program := filepath.Join(t.TempDir(), "agent")
	relink(t, filepath.Join(binDir(), "myelin"), program)
	c := up(t, setup{mode: encryptionModes(wireGuard())[0], agent: program})
	c.encrypted()
	before := c.encryptedBy()
	r := &restarter{cluster: c, program: program, versions: []string{filepath.Join(binDir(), "myelin"), nextBinary(t)}}
	r.load = startLoad(c)
	for i := range fewer(rounds / 4) { // each ends agents in four ways
		r.round(i)
		if t.Failed() {
			break
		}
	}
	lost := r.load.stop()
	if lost.packets > 0 {
		c.logCounters()
	}
	if after := c.encryptedBy(); after != before {
		t.Errorf("WireGuard is %s, and was %s before agents restarted", after, before)
	}
	record(t, result{"wireguard/restart_packets_lost", float64(lost.packets), "packets"},
		result{"wireguard/restart_connections_broken", float64(lost.connections), "connections"})
}

// encryptedBy is what encrypts on node1: a process, or the kernel.
func (c *cluster) encryptedBy() (what string) {
	c.t.Helper()
	process := regexp.MustCompile(`in (the kernel|process [0-9]+)`)
	eventually(c.t, "node1 says what encrypts", 10*time.Second, func() error {
		r, err := c.report()
		f := r.Feature("Encryption")
		if err != nil || f == nil {
			return errOr(err, "status has no line for encryption")
		}
		if what = process.FindString(f.Why); what == "" {
			return fmt.Errorf("it is %q", f.Why)
		}
		return nil
	})
	return what
}
