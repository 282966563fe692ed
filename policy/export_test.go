package policy

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"myelin/bpf"
)

// NewTestKernel makes a Kernel of maps that live as long as the test.
func NewTestKernel(t testing.TB) *Kernel {
	k, _ := kernelFor(t, map[string]uint32{"peers": 4096, "peer_prefixes": 4096, "peer_classes": 1 << 16, "verdicts": 1 << 18, "policies": 256, "flows": 512})
	k.now = time.Now
	return k
}

// Datapath is what has the maps, and the programs that ask them.
func (k *Kernel) Datapath() *bpf.Datapath { return k.datapath }

// Settle brings what the tables have now to the kernel.
func (e *Engine) Settle() error {
	f, err := e.follow()
	if err != nil {
		return err
	}
	e.round(f)
	if !e.began || e.failures > 0 {
		return errors.New("not all is in the kernel")
	}
	return nil
}

// Ask is what the maps say of an endpoint's flow with a peer, whose identity
// must be known.
func Ask(t testing.TB, k *Kernel, slot uint16, dir Direction, peer netip.Addr, proto uint8, port uint16) (allows, known bool) {
	t.Helper()
	id := worldOf(peer)
	if found, _ := lookupRow(k.datapath.Peers, bpf.Addr(peer), &id); !found {
		lookupRow(k.datapath.PeerPrefixes, bpf.Prefix(netip.PrefixFrom(peer, peer.BitLen())), &id)
	}
	return ask(t, k.datapath, slot, dir, peer, proto, port).ruling == allowed, id != 0
}
