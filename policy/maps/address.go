package maps

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"myelin/bpf"
	"myelin/policy/compile"
)

// putAddresses writes the identities of addresses and prefixes. One that doesn't fit
// fails the rules that name it, and is tried again. Rows go before others come:
// nothing that is in changes goes after it came.
func (k *Writer) putAddresses(c *compile.Compiler, changes []compile.AddressChange) error {
	changes = c.LatestChanges(changes)
	var goneAddrs, addrs []bpf.DatapathAddr
	var gonePrefixes, prefixes []bpf.DatapathPrefixKey
	var addrIDs, prefixIDs []uint32
	for _, ch := range changes {
		switch p, number := ch.Prefix, ch.Number; {
		case p.IsSingleIP() && number == compile.NoIdentity:
			goneAddrs = append(goneAddrs, bpf.Addr(p.Addr()))
		case p.IsSingleIP():
			addrs, addrIDs = append(addrs, bpf.Addr(p.Addr())), append(addrIDs, number)
		case number == compile.NoIdentity:
			gonePrefixes = append(gonePrefixes, bpf.Prefix(p))
		default:
			prefixes, prefixIDs = append(prefixes, bpf.Prefix(p)), append(prefixIDs, number)
		}
	}
	err1 := Delete(k, "peers", k.Datapath.Peers, goneAddrs)
	err2 := Delete(k, "peer_prefixes", k.Datapath.PeerPrefixes, gonePrefixes)
	err3 := Put(k, "peers", k.Datapath.Peers, addrs, addrIDs)
	err4 := Put(k, "peer_prefixes", k.Datapath.PeerPrefixes, prefixes, prefixIDs)
	err := errors.Join(err1, err2, err3, err4)
	if err != nil {
		c.RetryAddresses(changes)
		failAddresses(c, err3, addrIDs)
		failAddresses(c, err4, prefixIDs)
	}
	return err
}

// failAddresses fails the address sets of rows that were not written.
func failAddresses(c *compile.Compiler, err error, numbers []uint32) {
	var full *fullError
	if !errors.As(err, &full) {
		return
	}
	c.FailAddresses(numbers[full.done:], err)
}

// Hits are how many flows a row decided, and when it decided the last one.
func (k *Writer) Hits(class uint32, p compile.PortPrefix) (n, last uint64) {
	var v bpf.DatapathVerdict
	if found, err := lookupRow(k.Datapath.Verdicts, verdictKey(class, p), &v); err == nil && found {
		return v.Hits, v.Last
	}
	return 0, 0
}

// retire takes rows that are over to be deleted later.
func (k *Writer) retire(p *compile.Plan) {
	d := obsolete{at: k.Now().Add(grace)}
	class := func(c *compile.Class) {
		for _, r := range c.Verdicts {
			d.classes = append(d.classes, verdictKey(c.Number, r.PortPrefix))
		}
	}
	for _, s := range p.ObsoleteSets {
		for peer := range s.Peers {
			d.peers = append(d.peers, bpf.DatapathPeerClassKey{Set: s.Number, Identity: peer.Number})
		}
		for c := range s.Classes() {
			class(c)
		}
	}
	for _, r := range p.ObsoletePeers {
		d.peers = append(d.peers, bpf.DatapathPeerClassKey{Set: r.Set, Identity: r.Peer})
	}
	for _, c := range p.ObsoleteClasses {
		class(c)
	}
	if len(d.peers)+len(d.classes) > 0 {
		k.obsolete = append(k.obsolete, d)
	}
}

// Sweep deletes what is over for long enough, and all of it if the time has
// come to make room. It returns when there is more to do; zero: never.
func (k *Writer) Sweep(all bool) (next time.Duration, err error) {
	now := k.Now()
	for len(k.obsolete) > 0 {
		d := &k.obsolete[0]
		if !all && d.at.After(now) {
			return d.at.Sub(now), nil
		}
		err1 := Delete(k, "peer_classes", k.Datapath.PeerClasses, d.peers)
		err2 := Delete(k, "verdicts", k.Datapath.Verdicts, d.classes)
		if err := errors.Join(err1, err2); err != nil {
			return grace, err
		}
		k.obsolete = k.obsolete[1:]
	}
	return 0, nil
}

// Prune deletes what no plan has written: rows of an agent before.
func (k *Writer) Prune(c *compile.Compiler) error {
	used := map[uint32]bool{k.denyAll: true}
	peers := map[bpf.DatapathPeerClassKey]bool{}
	for s := range c.Sets() {
		for class := range s.Classes() {
			used[class.Number] = true
		}
		for d := range s.Peers {
			peers[bpf.DatapathPeerClassKey{Set: s.Number, Identity: d.Number}] = true
		}
	}
	for _, d := range k.obsolete {
		for _, key := range d.classes {
			used[key.Class] = true
		}
		for _, key := range d.peers {
			peers[key] = true
		}
	}
	return errors.Join(
		pruneMap(k, "policies", k.Datapath.Policies, func(slot uint32, _ *bpf.DatapathEndpointPolicy) bool {
			return slot < 1<<16 && c.Endpoint(uint16(slot)) != nil
		}),
		pruneMap(k, "peers", k.Datapath.Peers, func(a bpf.DatapathAddr, number *uint32) bool {
			return c.HasAddress(netip.PrefixFrom(a.Netip(), a.Netip().BitLen()), *number)
		}),
		pruneMap(k, "peer_prefixes", k.Datapath.PeerPrefixes, func(key bpf.DatapathPrefixKey, number *uint32) bool {
			return c.HasAddress(key.Netip(), *number)
		}),
		pruneMap(k, "peer_classes", k.Datapath.PeerClasses, func(key bpf.DatapathPeerClassKey,
			_ *bpf.DatapathPeerClass) bool {
			return peers[key]
		}),
		pruneMap(k, "verdicts", k.Datapath.Verdicts, func(key bpf.DatapathVerdictKey,
			_ *bpf.DatapathVerdict) bool {
			return used[key.Class]
		}),
	)
}

// pruneMap deletes the rows that are not to be kept.
func pruneMap[K, V any](k *Writer, name string, m *ebpf.Map, keep func(K, *V) bool) error {
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
	return Delete(k, name, m, stale)
}
