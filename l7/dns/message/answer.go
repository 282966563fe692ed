package message

import (
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"
)

// Limits of what is read of an answer; one that exceeds them is not understood.
const (
	// maxChain is how many names a chain of CNAMEs has.
	maxChain = 16
	// maxRecords is how many records of all passes are read: four times as many as fit into a message.
	maxRecords = 16384
)

// Answer is what the answer section says about the name that was asked for. It can be read into again.
type Answer struct {
	// Chain are the names from the question on, each a CNAME of the one before.
	Chain []Name
	// Addresses are those of the last name of the chain.
	Addresses []Address
	// Types are those of the records in the answer section.
	Types []uint16

	ttl  uint32 // the lowest one of the chain's CNAMEs
	work int    // records that may be read
}

// Address is an A or AAAA record.
type Address struct {
	Addr netip.Addr
	// TTL is the lowest one on the way from the question to the address, in seconds.
	TTL uint32
}

// Read reads the answer section of a response with one question, q. Only A and AAAA records of class IN that a chain of
// CNAMEs leads to, whatever their order, count: others may be about names that the server has no say in. It returns
// false, with no addresses, if the section is not understood.
func (a *Answer) Read(m []byte, q *Question) bool {
	a.Chain = append(a.Chain[:0], q.Name)
	a.ttl, a.work = ^uint32(0), maxRecords
	for {
		a.Addresses, a.Types = a.Addresses[:0], a.Types[:0]
		again, ok := a.pass(m)
		if !ok {
			a.Chain, a.Addresses, a.Types = a.Chain[:1], a.Addresses[:0], a.Types[:0]
			return false
		}
		if !again {
			return true
		}
	}
}

// pass follows the chain from its last name on. Servers send records in the order of the chain, so that one pass
// suffices; again says that the chain became longer, and an earlier record may belong to its end.
func (a *Answer) pass(m []byte) (again, ok bool) {
	var p dnsmessage.Parser
	if _, err := p.Start(m); err != nil || p.SkipAllQuestions() != nil {
		return false, false
	}
	skipped, length := false, len(a.Chain)
	for ; a.work > 0; a.work-- {
		h, err := p.AnswerHeader()
		if err == dnsmessage.ErrSectionDone {
			return skipped && len(a.Chain) > length, true
		}
		if err != nil {
			return false, false
		}
		a.Types = append(a.Types, uint16(h.Type))
		switch {
		case h.Class != dnsmessage.ClassINET || !follows(h.Type):
			err = p.SkipAnswer()
		case !a.Chain[len(a.Chain)-1].is(&h.Name):
			skipped = true
			err = p.SkipAnswer()
		case !a.record(&p, &h):
			return false, false
		}
		if err != nil {
			return false, false
		}
	}
	return false, false
}

func follows(t dnsmessage.Type) bool {
	return t == dnsmessage.TypeA || t == dnsmessage.TypeAAAA || t == dnsmessage.TypeCNAME
}

// record adds a record of the chain's last name.
func (a *Answer) record(p *dnsmessage.Parser, h *dnsmessage.ResourceHeader) bool {
	ttl := h.TTL
	if ttl >= 1<<31 {
		ttl = 0 // RFC 2181, section 8
	}
	ttl = min(ttl, a.ttl)
	switch h.Type {
	case dnsmessage.TypeA:
		r, err := p.AResource()
		if err != nil || h.Length != 4 {
			return false
		}
		a.Addresses = append(a.Addresses, Address{netip.AddrFrom4(r.A), ttl})
	case dnsmessage.TypeAAAA:
		r, err := p.AAAAResource()
		if err != nil || h.Length != 16 {
			return false
		}
		a.Addresses = append(a.Addresses, Address{netip.AddrFrom16(r.AAAA).Unmap(), ttl})
	default:
		r, err := p.CNAMEResource()
		if err != nil || len(a.Chain) == maxChain {
			return false
		}
		var target Name
		target.set(&r.CNAME)
		a.Chain, a.ttl = append(a.Chain, target), ttl
		a.Addresses = a.Addresses[:0] // a name with a CNAME has no other records (RFC 1034, section 3.6.2)
	}
	return true
}
