package scene

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/policy"
	"myelin/policy/compile"
	"myelin/test/policy/pick"
)

// SmallMaps are maps that are read at a glance.
func SmallMaps() map[string]uint32 {
	return map[string]uint32{"peers": 256, "peer_prefixes": 256, "peer_classes": 8192, "verdicts": 16384,
		"policies": 256}
}

// LoadMaps loads the datapath's maps in these sizes. They last as long as the test.
func LoadMaps(t testing.TB, sizes map[string]uint32) *bpf.Datapath {
	return bpftest.LoadMaps(t, settings(), sizes)
}

// Load is LoadMaps with the programs.
func Load(t testing.TB, sizes map[string]uint32) *bpf.Datapath {
	return bpftest.Load(t, settings(), sizes)
}

func settings() bpf.Settings { return bpf.Settings{Ipv4: 1, Ipv6: 1, Policy: 1, HostPolicy: 1} }

// peerIdentity is the identity that the maps have for an address; 0: not known.
func peerIdentity(d *bpf.Datapath, peer netip.Addr) uint32 {
	id := compile.WorldIdentity(peer)
	if d.Peers.Lookup(bpf.Addr(peer), &id) != nil {
		d.PeerPrefixes.Lookup(bpf.Prefix(netip.PrefixFrom(peer, peer.BitLen())), &id)
	}
	return id
}

func verdictKeyOf(class uint32, p compile.PortPrefix) bpf.DatapathVerdictKey {
	return bpf.DatapathVerdictKey{Class: class, Port: p.Port, Proto: p.Proto, Bits: p.Bits}
}

// Lookup is what the datapath does, with the maps alone.
func Lookup(t testing.TB, d *bpf.Datapath, slot uint16, dir policy.Direction, peer netip.Addr, proto uint8,
	port uint16) compile.PortVerdict {
	t.Helper()
	return lookupAs(t, d, slot, dir, peer, compile.Family(peer), proto, port)
}

// LookupNamed is Lookup of egress to an address that names of selectors have, as compile.Compiler.LookupNamed does it.
func LookupNamed(t testing.TB, d *bpf.Datapath, slot uint16, peer netip.Addr, selectors []uint32, proto uint8,
	port uint16) compile.PortVerdict {
	t.Helper()
	own := Lookup(t, d, slot, policy.Egress, peer, proto, port)
	id := peerIdentity(d, peer)
	outside := id == compile.WorldIdentity(peer) || id >= compile.FirstDerived && id == compile.Plain(id)
	if own.Verdict == compile.Denied || own.Verdict == compile.Allowed && !own.Proxy || !outside {
		return own
	}
	for _, n := range selectors {
		v := lookupAs(t, d, slot, policy.Egress, compile.SelectorAddress(n), compile.Family(peer), proto, port)
		if v.Verdict == compile.Allowed && (!v.Proxy || own.Verdict != compile.Allowed) {
			own = v
		}
	}
	return own
}

// lookupAs is Lookup in the endpoint's set of a family.
func lookupAs(t testing.TB, d *bpf.Datapath, slot uint16, dir policy.Direction, peer netip.Addr, family int,
	proto uint8, port uint16) compile.PortVerdict {
	t.Helper()
	var own bpf.DatapathEndpointPolicy
	if d.Policies.Lookup(uint32(slot), &own) != nil {
		return compile.PortVerdict{Verdict: compile.Allowed}
	}
	class, lengths := own.Set[dir][family], own.Lengths[dir][family]
	if class == 0 {
		return compile.PortVerdict{Verdict: compile.Allowed}
	}
	id := peerIdentity(d, peer)
	var of bpf.DatapathPeerClass
	if d.PeerClasses.Lookup(bpf.DatapathPeerClassKey{Set: class, Identity: id}, &of) == nil {
		class, lengths = of.Class, of.Lengths
	}
	var v bpf.DatapathVerdict
	for bits := 16; bits >= 0; bits-- {
		p := compile.PortPrefix{Port: port & (^uint16(0) << (16 - bits)), Proto: proto, Bits: uint8(bits)}
		if bits == 0 {
			p.Port = 0
		}
		if lengths&(1<<bits) == 0 || lengths&compile.ProtocolAbsent(proto) != 0 {
			continue
		}
		if d.Verdicts.Lookup(verdictKeyOf(class, p), &v) == nil {
			return compile.PortVerdict{PortPrefix: p, Verdict: compile.Verdict(v.Action), Rule: v.Rule,
				Proxy: v.Proxy != 0}
		}
	}
	if d.Verdicts.Lookup(verdictKeyOf(class, compile.PortPrefix{}), &v) != nil || lengths&(1<<17) == 0 {
		t.Fatalf("class %d has no row for all protocols", class)
	}
	return compile.PortVerdict{Verdict: compile.Verdict(v.Action), Rule: v.Rule,
		Proxy: v.Proxy != 0}
}

// CheckMaps compares the maps with the naive walk.
func (w *Scene) CheckMaps(d *bpf.Datapath, r *rand.Rand, what string) {
	w.T.Helper()
	for _, of := range w.Things {
		for _, peer := range w.Things {
			for _, a := range peer.Addrs {
				dir, proto, port := policy.Direction(r.IntN(2)), pick.Of(r, pick.Protocols()), pick.Of(r, pick.Ports())
				if of.Slot == 0 {
					continue
				}
				want := w.NaiveNamed(of, dir, peer, a, nil, proto, port)
				got := Lookup(w.T, d, of.Slot, dir, a, proto, port)
				if got.Verdict != want.Verdict || got.Proxy != (want.Proxied != nil) {
					w.T.Fatalf("%s: %s %s %s (%s) %d/%d: got %+v, want %+v", what, of.Name, dir, peer.Name, a, proto,
						port, got, want)
				}
			}
		}
	}
}

// Counts are how many rows maps have.
func Counts(t testing.TB, d *bpf.Datapath) (out [5]int) {
	t.Helper()
	err := errors.Join(
		bpf.Each(d.Policies, func(*uint32, *bpf.DatapathEndpointPolicy) bool { out[0]++; return true }),
		bpf.Each(d.Peers, func(*bpf.DatapathAddr, *uint32) bool { out[1]++; return true }),
		bpf.Each(d.PeerPrefixes, func(*bpf.DatapathPrefixKey, *uint32) bool { out[2]++; return true }),
		bpf.Each(d.PeerClasses, func(*bpf.DatapathPeerClassKey, *bpf.DatapathPeerClass) bool { out[3]++; return true }),
		bpf.Each(d.Verdicts, func(*bpf.DatapathVerdictKey, *bpf.DatapathVerdict) bool { out[4]++; return true }),
	)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Ask does the policy lookup for a flow of an endpoint in the maps, and reports whether the peer's identity is known.
func Ask(t testing.TB, d *bpf.Datapath, slot uint16, dir policy.Direction, peer netip.Addr, proto uint8,
	port uint16) (allows, known bool) {
	t.Helper()
	return Lookup(t, d, slot, dir, peer, proto, port).Verdict == compile.Allowed, peerIdentity(d, peer) != 0
}
