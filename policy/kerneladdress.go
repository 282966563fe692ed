package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"myelin/bpf"
)

// putAddresses writes whose addresses and prefixes are. One that doesn't fit
// fails the rules that name it, and is tried again. Rows go before others come:
// nothing that is in changes goes after it came.
func (k *Kernel) putAddresses(c *compiler, changes []change) error {
	changes = c.latestChanges(changes)
	var goneAddrs, addrs []bpf.DatapathAddr
	var gonePrefixes, prefixes []bpf.DatapathPrefixKey
	var addrIDs, prefixIDs []uint32
	for _, ch := range changes {
		switch p, number := ch.prefix, ch.number; {
		case p.IsSingleIP() && number == noNumber:
			goneAddrs = append(goneAddrs, bpf.Addr(p.Addr()))
		case p.IsSingleIP():
			addrs, addrIDs = append(addrs, bpf.Addr(p.Addr())), append(addrIDs, number)
		case number == noNumber:
			gonePrefixes = append(gonePrefixes, bpf.Prefix(p))
		default:
			prefixes, prefixIDs = append(prefixes, bpf.Prefix(p)), append(prefixIDs, number)
		}
	}
	err1 := deleteAll(k, "peers", k.datapath.Peers, goneAddrs)
	err2 := deleteAll(k, "peer_prefixes", k.datapath.PeerPrefixes, gonePrefixes)
	err3 := putAll(k, "peers", k.datapath.Peers, addrs, addrIDs)
	err4 := putAll(k, "peer_prefixes", k.datapath.PeerPrefixes, prefixes, prefixIDs)
	err := errors.Join(err1, err2, err3, err4)
	if err != nil {
		c.retryAddresses(changes)
		blame(c, err3, addrIDs)
		blame(c, err4, prefixIDs)
	}
	return err
}

// blame fails the address sets of rows that were not written.
func blame(c *compiler, err error, numbers []uint32) {
	var full *fullError
	if !errors.As(err, &full) {
		return
	}
	c.failAddresses(numbers[full.done:], err)
}

// hits are how many flows a row decided, and when it decided the last one.
func (k *Kernel) hits(class uint32, p portPrefix) (n, last uint64) {
	var v bpf.DatapathVerdict
	if found, err := lookupRow(k.datapath.Verdicts, verdictKey(class, p), &v); err == nil && found {
		return v.Hits, v.Last
	}
	return 0, 0
}

// retire takes rows that are over to be deleted later.
func (k *Kernel) retire(p *plan) {
	d := due{at: k.now().Add(grace)}
	class := func(c *class) {
		for _, r := range c.rows {
			d.classes = append(d.classes, verdictKey(c.number, r.portPrefix))
		}
	}
	for _, s := range p.overSets {
		for peer := range s.peers {
			d.peers = append(d.peers, bpf.DatapathPeerClassKey{Set: s.number, Identity: peer.number})
		}
		for _, c := range s.byRows {
			class(c)
		}
	}
	for _, r := range p.overPeers {
		d.peers = append(d.peers, bpf.DatapathPeerClassKey{Set: r.set, Identity: r.peer})
	}
	for _, c := range p.over {
		class(c)
	}
	if len(d.peers)+len(d.classes) > 0 {
		k.due = append(k.due, d)
	}
}

// sweep deletes what is over for long enough, and all of it if the time has
// come to make room. It returns when there is more to do; zero: never.
func (k *Kernel) sweep(all bool) (next time.Duration, err error) {
	now := k.now()
	for len(k.due) > 0 {
		d := &k.due[0]
		if !all && d.at.After(now) {
			return d.at.Sub(now), nil
		}
		err1 := deleteAll(k, "peer_classes", k.datapath.PeerClasses, d.peers)
		err2 := deleteAll(k, "verdicts", k.datapath.Verdicts, d.classes)
		if err := errors.Join(err1, err2); err != nil {
			return grace, err
		}
		k.due = k.due[1:]
	}
	return 0, nil
}

// prune deletes what no plan has written: rows of an agent before.
func (k *Kernel) prune(c *compiler) error {
	used := map[uint32]bool{k.closed: true}
	peers := map[bpf.DatapathPeerClassKey]bool{}
	for s := range c.allSets() {
		for _, class := range s.byRows {
			used[class.number] = true
		}
		for d := range s.peers {
			peers[bpf.DatapathPeerClassKey{Set: s.number, Identity: d.number}] = true
		}
	}
	for _, d := range k.due {
		for _, key := range d.classes {
			used[key.Class] = true
		}
		for _, key := range d.peers {
			peers[key] = true
		}
	}
	return errors.Join(
		pruneMap(k, "policies", k.datapath.Policies, func(slot uint32, _ *bpf.DatapathEndpointPolicy) bool {
			return slot < 1<<16 && c.target(uint16(slot)) != nil
		}),
		pruneMap(k, "peers", k.datapath.Peers, func(a bpf.DatapathAddr, number *uint32) bool {
			return c.hasAddress(netip.PrefixFrom(a.Netip(), a.Netip().BitLen()), *number)
		}),
		pruneMap(k, "peer_prefixes", k.datapath.PeerPrefixes, func(key bpf.DatapathPrefixKey, number *uint32) bool {
			return c.hasAddress(key.Netip(), *number)
		}),
		pruneMap(k, "peer_classes", k.datapath.PeerClasses, func(key bpf.DatapathPeerClassKey, _ *bpf.DatapathPeerClass) bool { return peers[key] }),
		pruneMap(k, "verdicts", k.datapath.Verdicts, func(key bpf.DatapathVerdictKey, _ *bpf.DatapathVerdict) bool { return used[key.Class] }),
	)
}

// pruneMap deletes the rows that are not to be kept.
func pruneMap[K, V any](k *Kernel, name string, m *ebpf.Map, keep func(K, *V) bool) error {
	var stale []K
	err := bpf.Each(m, func(key *K, value *V) bool {
		if !keep(*key, value) {
			stale = append(stale, *key)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("read map %s: %w", name, err)
	}
	return deleteAll(k, name, m, stale)
}
