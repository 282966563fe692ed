package labtest

import (
	"os"
	"testing"
	"time"
)

// TestIPsecRotate replaces IPsec's key under TCP streams and UDP at 1,000 packets a second, and at last restarts agents
// meanwhile. Nothing is lost. Of 100 keys, each but the last of ten is replaced while former ones are still accepted.
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
	switch {
	case os.Getenv(envRecord) == "1": // also in the VM, where all takes longer
		n = rotations
	case !testing.Short():
		n = fewer(rotations)
	}
	load := startLoad(c)
	for i := range n {
		id, begin := (3+i)%15+1, time.Now()
		writeKey(t, m.values["encryption.ipsec.mountPath"].(string), id)
		if i == n-1 {
			c.restartAgents()
		}
		c.usesKey(id)
		if n < rotations || i%10 == 9 || i == n-1 {
			c.keyEnds()
		}
		if err := load.settled(); err != nil {
			t.Errorf("rotation %d: %v", i, err)
			c.logCounters()
			break
		}
		t.Logf("rotation %d, to key %d: %s", i, id, time.Since(begin).Round(100*time.Millisecond))
	}
	lost := load.stop()
	record(t, result{"encrypt/ipsec_rotation_lost", float64(lost.packets), "packets"},
		result{"encrypt/ipsec_rotations", float64(n), "rotations"})
}
