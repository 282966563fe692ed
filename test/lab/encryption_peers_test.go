package labtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	nodes "myelin/cluster"
	"myelin/encryption"
	"myelin/encryption/userspace"
	"myelin/status"
)

// manyPeers is how many other nodes there are, of which there are only the Nodes, and keyChanges how many of them get
// another key one after the other.
const (
	manyPeers  = 1000
	keyChanges = 200
)

// TestEncryptionPeers has one agent and 1,000 Nodes, whose keys change one after the other, and then all at once. The
// time is from the Node with another key to the device with that peer, at the 99th percentile.
//
//	┌─ node1 ──────────────┐
//	│ agent, myelin_wg0    │   Nodes peer0 … peer999, without machines
//	└──────────────────────┘
func TestEncryptionPeers(t *testing.T) {
	m := encryptionModes(wireGuard())[0]
	if why := noEncryption(m); why != "" {
		t.Skip(why)
	}
	c := up(t, setup{mode: m, nodes: 1, pods: []string{}})
	p := &peering{cluster: c, keys: make([]wgtypes.Key, manyPeers)}
	for i := range p.keys {
		p.publish(i)
	}
	p.await("all peers are there", p.keys...)
	var times []time.Duration
	agent := c.Node("node1").AgentProcess().PID
	start := processTime(t, agent)
	for i := range fewer(keyChanges) {
		begin := time.Now()
		p.publish(i * 7 % manyPeers)
		p.await("the peer has another key", p.keys[i*7%manyPeers])
		times = append(times, time.Since(begin))
	}
	slices.Sort(times)
	p99 := times[len(times)*99/100]
	t.Logf("a key takes %v at the median, %v at the 99th percentile, %v at most", times[len(times)/2], p99,
		times[len(times)-1])
	if p99 > patience(time.Second) {
		t.Errorf("the device has another key of a node after %v at the 99th percentile", p99)
	}
	single := (processTime(t, agent) - start) / time.Duration(len(times))
	begin := time.Now()
	start = processTime(t, agent)
	for i := range p.keys {
		p.publish(i)
	}
	p.await("all peers have another key", p.keys...)
	burst := time.Since(begin)
	each := (processTime(t, agent) - start) / manyPeers
	t.Logf("the agent works %v for a key that changes alone, %v for one of all", single, each)
	if each > single {
		t.Errorf("the agent works %v for each of %d keys that change together, %v for one", each, manyPeers, single)
	}
	record(t, result{"encrypt/peers_p99_s", p99.Seconds(), "s"}, result{"encrypt/peers_burst_s", burst.Seconds(), "s"},
		result{"encrypt/peers_rss_mb", c.rss("node1"), "MB"})
}

// peering are the keys of the other nodes.
type peering struct {
	*cluster
	keys []wgtypes.Key
}

// publish gives a node another key, in its Node.
func (p *peering) publish(i int) {
	p.t.Helper()
	private, err := wgtypes.GeneratePrivateKey()
	check(p.t, err)
	p.keys[i] = private.PublicKey()
	a, b := i/256, i%256
	text := fmt.Sprintf(`apiVersion: v1
kind: Node
metadata: {name: peer%d, annotations: {%s: %q}}
spec: {podCIDRs: [10.%d.%d.0/24, "fd00:10:1:%x::/64"]}
status:
  addresses:
  - {type: InternalIP, address: 192.168.%d.%d}
  - {type: InternalIP, address: "fd00:65::%x"}
`, i, nodes.WireGuardAnnotation, p.keys[i], 100+a, b, i, 100+a, b, i+1)
	path := filepath.Join(p.Manifests(), fmt.Sprintf("node__peer%d.yaml", i))
	check(p.t, os.WriteFile(path+".next", []byte(text), 0o644))
	check(p.t, os.Rename(path+".next", path))
}

// await waits until the device has peers with these keys, and no others than the nodes have.
func (p *peering) await(what string, keys ...wgtypes.Key) {
	p.t.Helper()
	deadline := time.Now().Add(patience(time.Minute))
	for {
		have := p.peers()
		missing := 0
		for _, k := range keys {
			if !have[k] {
				missing++
			}
		}
		if missing == 0 && len(have) == manyPeers {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("not within a minute: %s; %d are missing, and it has %d", what, missing, len(have))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// peers are the keys that the device has.
func (p *peering) peers() map[wgtypes.Key]bool {
	p.t.Helper()
	return p.peerKeys("node1")
}

// peerKeys are the keys of the peers of a node's WireGuard device.
func (c *cluster) peerKeys(node string) map[wgtypes.Key]bool {
	c.t.Helper()
	var d *wgtypes.Device
	check(c.t, c.Node(node).Do(func() (err error) {
		if encryptionState() == status.Fallback {
			d, err = (&userspace.Client{RunDir: c.Node(node).RunDir()}).Device(encryption.DeviceName)
			return err
		}
		kernel, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer kernel.Close()
		d, err = kernel.Device(encryption.DeviceName)
		return err
	}))
	keys := make(map[wgtypes.Key]bool, len(d.Peers))
	for i := range d.Peers {
		keys[d.Peers[i].PublicKey] = true
	}
	return keys
}
