package encryption

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"myelin/cluster"
)

// counted is a device that counts what is done to it.
type counted struct {
	device                   wgtypes.Device
	reads, calls, allowedIPs int
}

func (c *counted) Device(string) (*wgtypes.Device, error) {
	c.reads++
	d := c.device
	return &d, nil
}

func (c *counted) ConfigureDevice(_ string, change wgtypes.Config) error {
	c.calls++
	for _, p := range change.Peers {
		c.allowedIPs += len(p.AllowedIPs)
	}
	return nil
}

func (*counted) Close() error { return nil }

// keyOf is a key that differs for each n.
func keyOf(n int) string {
	sum := sha256.Sum256(fmt.Append(nil, n))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// someNode is a node with two podCIDRs and two addresses.
func someNode(i, key int) *cluster.Node {
	at := func(family4, family6 string) []string {
		return []string{fmt.Sprintf(family4, i/256, i%256), fmt.Sprintf(family6, i)}
	}
	parts := append(at("10.%d.%d.0/24", "fd00:10:0:%x::/64"), at("192.168.%d.%d", "fd00:64::%x")...)
	return node(fmt.Sprint("node", i), keyOf(key), parts...)
}

// TestPeersWork changes the key of each of 1,000 nodes: a change writes what is the node's, once, and the device is not
// read for each.
func TestPeersWork(t *testing.T) {
	const n, each = 1000, 4
	c := &counted{}
	ops := &peerOps{c, map[string]*allowed{DeviceName: {}}}
	in := testInput()
	in.nodes, in.outside = nil, nil
	for i := range n {
		in.nodes = append(in.nodes, someNode(i, i))
	}
	rows := derivePeers(in)
	begin := time.Now()
	update := func(p *Peer) {
		t.Helper()
		if err := ops.Update(t.Context(), nil, 0, p); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range rows {
		update(p)
		key, _ := wgtypes.ParseKey(p.PublicKey)
		config, _ := p.config()
		c.device.Peers = append(c.device.Peers, wgtypes.Peer{PublicKey: key, AllowedIPs: config.AllowedIPs})
	}
	ops.allowed[DeviceName].at = time.Now() // as read again
	c.reads, c.calls, c.allowedIPs = 0, 0, 0
	for i, old := range rows {
		in.nodes[i] = someNode(i, n+i)
		update(derivePeers(in)[i])
		if err := ops.Delete(t.Context(), nil, 0, old); err != nil {
			t.Fatal(err)
		}
	}
	if most := int(time.Since(begin)/readAgain) + 1; c.reads > most {
		t.Errorf("the device was read %d times, want at most %d", c.reads, most)
	}
	if c.calls != 2*n || c.allowedIPs != each*n {
		t.Errorf("%d calls with %d allowed IPs, want %d with %d", c.calls, c.allowedIPs, 2*n, each*n)
	}
}

// TestAllowed: of a change to a peer that allowed IPs remain which it lacks; they go from one peer to another one.
func TestAllowed(t *testing.T) {
	a := &allowed{owner: map[netip.Prefix]wgtypes.Key{}, list: map[wgtypes.Key]map[netip.Prefix]bool{}}
	peer := func(key string, parts ...string) wgtypes.PeerConfig {
		p := &Peer{PublicKey: key}
		for _, s := range parts {
			p.AllowedIPs = append(p.AllowedIPs, netip.MustParsePrefix(s))
		}
		c, err := p.config()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	change := func(c wgtypes.PeerConfig, lacking int, replaces bool) {
		t.Helper()
		a.reduce(&c)
		if len(c.AllowedIPs) != lacking || c.ReplaceAllowedIPs != replaces {
			t.Errorf("%d allowed IPs, replaced: %v; want %d, %v", len(c.AllowedIPs), c.ReplaceAllowedIPs, lacking,
				replaces)
		}
		a.set(c.PublicKey, c.AllowedIPs)
	}
	one, other := keyOf(1), keyOf(2)
	change(peer(one, "10.0.0.0/24", "10.0.1.0/24"), 2, false)
	change(peer(one, "10.0.0.0/24", "10.0.1.0/24"), 0, false)
	change(peer(other, "10.0.1.0/24", "10.0.2.0/24"), 2, false)
	change(peer(one, "10.0.0.0/24"), 0, false) // the other one has taken the second prefix
	change(peer(other, "10.0.2.0/24"), 1, true)
	change(peer(one, "10.0.0.0/24", "10.0.1.0/24"), 1, false)
	key, err := wgtypes.ParseKey(one)
	if err != nil {
		t.Fatal(err)
	}
	a.remove(key)
	change(peer(other, "10.0.0.0/24", "10.0.2.0/24"), 1, false)
	if len(a.owner) != 2 || len(a.list) != 1 {
		t.Errorf("%d prefixes of %d peers are known, want 2 of 1", len(a.owner), len(a.list))
	}
}

func BenchmarkDerivePeers(b *testing.B) {
	in := testInput()
	in.nodes, in.outside = nil, nil
	for i := range 1000 {
		in.nodes = append(in.nodes, someNode(i, i))
	}
	for b.Loop() {
		derivePeers(in)
	}
}
