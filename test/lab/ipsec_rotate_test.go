package labtest

import (
	"testing"
	"time"
)

// TestIPsecRotate replaces IPsec's key under TCP streams and UDP at 1,000 packets a second, and at last restarts agents
// meanwhile. Nothing is lost.
//
//	┌─ node1 ─────┐                           ┌─ node2 ─────┐
//	│ a1 ⇄ ipsec0 │⇄ ESP, key 3, 4, … 15, 1 …⇄│ ipsec0 ⇄ a2 │
//	└─────────────┘                           └─────────────┘
func TestIPsecRotate(t *testing.T) {
	if why := noIPsec(); why != "" {
		t.Skip(why)
	}
	m := encryptionModes(byIPsec(t))[0]
	m.values["encryption.ipsec.keyRotationDuration"] = patience(5 * time.Second).String()
	c := up(t, setup{mode: m})
	c.encrypted()
	n := 2
	if !testing.Short() {
		n = fewer(rotations)
	}
	load := startLoad(c)
	for i := range n {
		id := (3+i)%15 + 1
		writeKey(t, m.values["encryption.ipsec.mountPath"].(string), id)
		if i == n-1 {
			c.restartAgents()
		}
		c.usesKey(id)
		c.keyEnds()
		if err := load.settled(); err != nil {
			t.Errorf("rotation %d: %v", i, err)
			c.logCounters()
			break
		}
	}
	lost := load.stop()
	record(t, result{"ipsec/rotation_lost", float64(lost.packets), "packets"},
		result{"ipsec/rotations", float64(n), "rotations"})
}
