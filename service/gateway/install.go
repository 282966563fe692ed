package gateway

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	apiv1 "myelin/api/v1"
	"myelin/bpf"
	"myelin/flow"
	"myelin/service/nat"
)

// What flows of peers may take of nat_entries, whose least recently used entries the kernel evicts when it is full:
// they must not evict flows of this node.
const (
	maxLearned = 2  // one part of so many
	reserve    = 10 // one part of so many is left free
)

// clockSlack is by how much two reports on one flow can differ without one of them being later: replies and the
// transport delay the time of the last packet.
const clockSlack = 2 * time.Second

// installer puts flows of peers into the datapath. Peers call it at the same time.
type installer struct {
	params *Params
	hz     uint32
	// entries are all in nat_entries, learned those of peers; the walk counts them, in between they are estimates.
	entries, learned atomic.Int64
	results          counts
}

// counts are flows by result.
type counts [kernelError + 1]atomic.Uint64

func (c *counts) add(r apiv1.PeerFlowResult) { c[r].Add(1) }

// refused is the number of flows that were not taken over and should have been.
func (c *counts) refused() (n uint64) {
	for i := firstRefusal; int(i) < len(c); i++ {
		n += c[i].Load()
	}
	return n
}

// reset begins to count anew.
func (c *counts) reset() {
	for i := range c {
		c[i].Store(0)
	}
}

// messages returns the messages of an acknowledgement.
func (c *counts) messages() (list []*apiv1.PeerFlowCount) {
	for i := range c {
		if n := c[i].Load(); n > 0 {
			list = append(list, &apiv1.PeerFlowCount{Result: apiv1.PeerFlowResult(i), Flows: n})
		}
	}
	return list
}

// install takes over the flows of a batch, and counts the results also in the given counts.
func (in *installer) install(batch []*apiv1.PeerFlow, session *counts) error {
	clock, err := flow.ReadClock(in.hz)
	if err != nil {
		return fmt.Errorf("install flows of a peer: %w", err)
	}
	s := newServices(in.params)
	var errs error
	for _, m := range batch {
		result, err := in.one(clock, s, m)
		if err != nil && errs == nil {
			errs = fmt.Errorf("install a flow of a peer: %w", err)
		}
		in.results.add(result)
		session.add(result)
	}
	return errs
}

func (in *installer) one(clock flow.Clock, s *services, m *apiv1.PeerFlow) (apiv1.PeerFlowResult, error) {
	r, ok := parse(m)
	if !ok {
		return malformed, nil
	}
	key := r.key()
	if r.state == ended {
		return in.end(clock, &r, &key)
	}
	member, result, err := s.member(&r)
	if result != installed {
		return result, err
	}
	e := r.entry(clock, member)
	if err := in.setStat(&key, &e); err != nil {
		return kernelError, err
	}
	if nat.Expired(clock, &key, &e) {
		return outdated, nil
	}
	return in.put(clock, &key, &e)
}

// put inserts an entry, or replaces a peer's. Cost: a system call for a new flow, three with SNAT. Keys are passed by
// their address, which spares the library an encoding.
func (in *installer) put(
	clock flow.Clock, key *bpf.DatapathNatTuple, e *bpf.DatapathNatEntry,
) (apiv1.PeerFlowResult, error) {
	if e.Flags&flagSNAT == 0 && !in.full() {
		if result, err := in.write(key, e, ebpf.UpdateNoExist); result != local {
			return result, err
		}
	}
	var old bpf.DatapathNatEntry
	known, err := in.find(key, &old)
	switch {
	case err != nil:
		return kernelError, err
	case !known && in.full():
		return full, nil
	case known && isLocal(clock, key, &old):
		return local, nil
	case known && later(clock, old.Seen, e.Seen):
		return outdated, nil
	}
	if known && bpf.ReplyTuple(key, &old) != bpf.ReplyTuple(key, e) {
		if err := in.params.Datapath.DeleteNatReply(key, &old); err != nil {
			return kernelError, err
		}
	}
	claimed, err := in.claim(key, e)
	if err != nil || !claimed {
		return snatPort, err
	}
	flags := ebpf.UpdateNoExist
	if known {
		flags = ebpf.UpdateExist
	}
	result, err := in.write(key, e, flags)
	if result != installed {
		err = errors.Join(err, in.unclaim(key, e))
	}
	return result, err
}

// write writes an entry. The result is local if there is one and should not be, outdated the other way round.
func (in *installer) write(
	key *bpf.DatapathNatTuple, e *bpf.DatapathNatEntry, flags ebpf.MapUpdateFlags,
) (apiv1.PeerFlowResult, error) {
	err := in.params.Datapath.NatEntries.Update(key, e, flags)
	switch {
	case err == nil && flags == ebpf.UpdateNoExist:
		in.entries.Add(1)
		in.learned.Add(1)
		return installed, nil
	case err == nil:
		return installed, nil
	case errors.Is(err, ebpf.ErrKeyExist): // a packet has arrived here
		return local, nil
	case errors.Is(err, ebpf.ErrKeyNotExist): // it was evicted or has ended
		return outdated, nil
	case errors.Is(err, unix.E2BIG):
		return full, nil
	}
	return kernelError, err
}

// setStat sets the index of the counters of the flow's Service and backend.
func (in *installer) setStat(key *bpf.DatapathNatTuple, e *bpf.DatapathNatEntry) error {
	var value uint32
	_, err := bpf.Get(in.params.Datapath.Members, &bpf.DatapathMemberKey{
		Addr: e.Backend, Service: e.Service, Port: e.BackendPort, Proto: key.Proto,
	}, &value)
	e.Stat = uint16(bpf.MemberStat(value))
	return err
}

// isLocal reports whether a flow is this node's own: no peer can change it.
func isLocal(clock flow.Clock, key *bpf.DatapathNatTuple, e *bpf.DatapathNatEntry) bool {
	return (!learned(e) || e.BackendId == 0) && !nat.Expired(clock, key, e)
}

func (in *installer) find(key *bpf.DatapathNatTuple, e *bpf.DatapathNatEntry) (bool, error) {
	return bpf.Get(in.params.Datapath.NatEntries, key, e)
}

// full reports whether there is no room for another flow of a peer.
func (in *installer) full() bool {
	room := int64(in.params.Datapath.NatEntries.MaxEntries())
	return in.learned.Load() >= room/maxLearned || in.entries.Load() >= room-room/reserve
}

// claim inserts the entry of the flow's replies. It returns false if another flow has their tuple. Flows with DSR need
// none.
func (in *installer) claim(key *bpf.DatapathNatTuple, e *bpf.DatapathNatEntry) (bool, error) {
	if e.Flags&flagSNAT == 0 {
		return true, nil
	}
	d := in.params.Datapath
	tuple := bpf.ReplyTuple(key, e)
	err := d.NatReplies.Update(&tuple, &bpf.DatapathNatReply{Request: *key}, ebpf.UpdateNoExist)
	if !errors.Is(err, ebpf.ErrKeyExist) {
		return err == nil, err
	}
	var reply bpf.DatapathNatReply
	return d.ReadNatReply(key, e, &reply)
}

// unclaim deletes the entry of replies that claim has inserted, unless the datapath has made the same flow.
func (in *installer) unclaim(key *bpf.DatapathNatTuple, e *bpf.DatapathNatEntry) error {
	var now bpf.DatapathNatEntry
	known, err := in.find(key, &now)
	if err != nil || e.Flags&flagSNAT == 0 || known && bpf.ReplyTuple(key, &now) == bpf.ReplyTuple(key, e) {
		return err
	}
	return in.params.Datapath.DeleteNatReply(key, e)
}

// end deletes the entry of a flow that its load balancer has no more, unless it has moved here or to another one.
func (in *installer) end(clock flow.Clock, r *record, key *bpf.DatapathNatTuple) (apiv1.PeerFlowResult, error) {
	var old bpf.DatapathNatEntry
	known, err := in.find(key, &old)
	switch seen := uint32(clock.Ticks - ticks(clock, r.idle)); {
	case err != nil:
		return kernelError, err
	case known && isLocal(clock, key, &old):
		return local, nil
	case !known || later(clock, old.Seen, seen):
		return outdated, nil
	}
	d := in.params.Datapath
	if err := d.NatEntries.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return kernelError, err
	}
	if old.Flags&flagSNAT != 0 {
		if err := d.DeleteNatReply(key, &old); err != nil {
			return kernelError, err
		}
	}
	in.entries.Add(-1)
	in.learned.Add(-1)
	return installed, nil
}

// later reports whether the tick a is clearly after b.
func later(clock flow.Clock, a, b uint32) bool {
	return int32(a-b) > int32(int64(clock.Hz)*int64(clockSlack/time.Second))
}
