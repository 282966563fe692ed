package dnstest

import (
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// Walk is what an answer says, found in the plainest way.
type Walk struct {
	// Reachable are the addresses of all names that CNAMEs lead to, with the lowest TTL on the way.
	Reachable map[netip.Addr]uint32
	// Plain says that no name has several CNAMEs or CNAMEs and addresses, there is no loop, and a chain has at most 16
	// names: then all readers must find the same.
	Plain bool
	// Names are those of the chain, if it is plain.
	Names []string
}

// NewWalk reads a response; false if a CNAME or an address in the answer section is not valid, or has a wrong length.
func NewWalk(m []byte, question string) (Walk, bool) {
	var p dnsmessage.Parser
	if _, err := p.Start(m); err != nil || p.SkipAllQuestions() != nil {
		return Walk{}, false
	}
	if lengths := p; lengths.SkipAllAnswers() != nil {
		return Walk{}, false
	}
	answers, ok := records(&p)
	if !ok {
		return Walk{}, false
	}
	w := Walk{Reachable: map[netip.Addr]uint32{}, Plain: true}
	w.visit(answers, strings.ToLower(question), ^uint32(0), map[string]bool{})
	w.Plain = w.Plain && len(w.Names) <= 16 && len(answers) < 1000
	return w, true
}

func records(p *dnsmessage.Parser) (all []dnsmessage.Resource, ok bool) {
	for {
		h, err := p.AnswerHeader()
		if err == dnsmessage.ErrSectionDone {
			return all, true
		}
		if err != nil {
			return nil, false
		}
		r := dnsmessage.Resource{Header: h}
		switch h.Type {
		case dnsmessage.TypeA:
			var body dnsmessage.AResource
			body, err = p.AResource()
			r.Body, ok = &body, h.Length == 4
		case dnsmessage.TypeAAAA:
			var body dnsmessage.AAAAResource
			body, err = p.AAAAResource()
			r.Body, ok = &body, h.Length == 16
		case dnsmessage.TypeCNAME:
			var body dnsmessage.CNAMEResource
			body, err = p.CNAMEResource()
			r.Body, ok = &body, true
		default:
			err, ok = p.SkipAnswer(), true
		}
		if err != nil || !ok {
			return nil, false
		}
		all = append(all, r)
	}
}

func (w *Walk) visit(answers []dnsmessage.Resource, name string, ttl uint32, seen map[string]bool) {
	if seen[name] {
		w.Plain = false
		return
	}
	seen[name] = true
	w.Names = append(w.Names, name)
	addresses, aliases := 0, 0
	for _, r := range answers {
		if strings.ToLower(r.Header.Name.String()) != name || r.Header.Class != dnsmessage.ClassINET {
			continue
		}
		least := min(ttl, r.Header.TTL)
		if r.Header.TTL >= 1<<31 {
			least = 0
		}
		switch body := r.Body.(type) {
		case *dnsmessage.AResource:
			w.reach(netip.AddrFrom4(body.A), least)
			addresses++
		case *dnsmessage.AAAAResource:
			w.reach(netip.AddrFrom16(body.AAAA).Unmap(), least)
			addresses++
		case *dnsmessage.CNAMEResource:
			w.visit(answers, strings.ToLower(body.CNAME.String()), least, seen)
			aliases++
		}
	}
	w.Plain = w.Plain && aliases <= 1 && (aliases == 0 || addresses == 0)
}

// reach notes an address; of several TTLs, the longest counts.
func (w *Walk) reach(a netip.Addr, ttl uint32) {
	w.Reachable[a] = max(w.Reachable[a], ttl)
}
