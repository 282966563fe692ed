package proxy

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"myelin/bpf"
	"myelin/drop"
	"myelin/l7/dns"
)

// Times in DatapathDnsEntry.Pending are those of CLOCK_MONOTONIC in units of 2^pendingShift nanoseconds, modulo 2^32.
const (
	pendingShift = uint64(bpf.DatapathDnsBoundDNS_PENDING_SHIFT)
	pendingSlack = uint32(bpf.DatapathDnsBoundDNS_PENDING_SLACK)
)

// pendingSent returns the time that a pending query has, which is not after now but for clocks that differ.
func pendingSent(at, now uint64) uint64 {
	age := uint32(now>>pendingShift) - uint32(at>>32) + pendingSlack
	return now + uint64(pendingSlack)<<pendingShift - uint64(age)<<pendingShift
}

// PutQuestion implements dns.Questions.
func (m *datapath) PutQuestion(q *dns.Question, p *dns.Passing) error {
	questions := m.current.Load().questions
	if questions == nil {
		return nil
	}
	row := bpf.DatapathDnsEntry{Expires: p.Expires, Epoch: p.Epoch, Addresses: uint32(len(p.Addresses))}
	for i, a := range p.Addresses {
		row.Addr[i] = bpf.Addr(a)
	}
	for _, one := range p.Pending {
		addPending(&row, one)
	}
	if err := questions.Put(questionKey(q), &row); err != nil {
		return fmt.Errorf("write dns_entries: %w", err)
	}
	return nil
}

// addPending adds a query where the datapath looks for it (dns_pending_at).
func addPending(row *bpf.DatapathDnsEntry, p dns.Pending) {
	first := int(p.ID ^ p.Port)
	for i := range 2 {
		at := &row.Pending[(first+i)%len(row.Pending)]
		if *at == 0 {
			*at = p.Sent>>pendingShift<<32 | uint64(p.Port)<<16 | uint64(p.ID)
			return
		}
	}
}

// GetQuestion implements dns.Questions.
func (m *datapath) GetQuestion(q *dns.Question) (p dns.Passing, found bool) {
	var row bpf.DatapathDnsEntry
	questions := m.current.Load().questions
	if questions == nil || questions.Lookup(questionKey(q), &row) != nil {
		return p, false
	}
	now := m.clock.Monotonic()
	p = dns.Passing{Epoch: row.Epoch, Expires: row.Expires, SeenUntil: row.Seen}
	for i, a := range row.Addr[:min(int(row.Addresses), len(row.Addr))] {
		p.Addresses = append(p.Addresses, a.Netip())
		if row.SeenAddr&(1<<i) != 0 {
			p.Seen = append(p.Seen, a.Netip())
		}
	}
	for _, at := range row.Pending {
		if at != 0 {
			p.Pending = append(p.Pending,
				dns.Pending{Port: uint16(at >> 16), ID: uint16(at), Sent: pendingSent(at, now)})
		}
	}
	return p, true
}

// DeleteQuestion implements dns.Questions.
func (m *datapath) DeleteQuestion(q *dns.Question) error {
	questions := m.current.Load().questions
	if questions == nil {
		return nil
	}
	err := questions.Delete(questionKey(q))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete from dns_entries: %w", err)
	}
	return nil
}

// forgetQuestions deletes the entries of a proxy before.
func (m *datapath) forgetQuestions() error {
	var keys []bpf.DatapathDnsKey
	all := m.current.Load().questions
	if all == nil {
		return nil
	}
	err := bpf.Each(all, func(key *bpf.DatapathDnsKey, _ *bpf.DatapathDnsEntry) bool {
		keys = append(keys, *key)
		return true
	})
	for i := range keys {
		if bad := all.Delete(&keys[i]); bad != nil && !errors.Is(bad, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, bad)
		}
	}
	if err != nil {
		return fmt.Errorf("clear dns_entries: %w", err)
	}
	return nil
}

func questionKey(q *dns.Question) *bpf.DatapathDnsKey {
	key := &bpf.DatapathDnsKey{Server: bpf.Addr(q.Server.Addr()), Length: uint16(len(q.Text)), Slot: uint32(q.Slot),
		Port: bpf.Port(q.Server.Port())}
	copy(key.Question[:], q.Text)
	return key
}

// passed is how many queries have passed without any proxy; 0 if the datapath has counters of another version.
func (m *datapath) passed() (n uint64) {
	list, err := drop.Counters{Cpus: m.current.Load().cpus}.Read()
	if err != nil {
		return 0
	}
	for _, c := range list {
		if c.Outcome.Number == bpf.DatapathOutcomeFORWARD_DNS_QUERY {
			n += c.Packets
		}
	}
	return n
}

// The limits of the engine are those of the datapath.
var (
	_ [dns.MaxQuestionLen]byte       = bpf.DatapathDnsKey{}.Question
	_ [dns.MaxQuestionAddresses]byte = [len(bpf.DatapathDnsEntry{}.Addr)]byte{}
)
