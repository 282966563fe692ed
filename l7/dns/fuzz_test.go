package dns

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"myelin/l7/dns/dnstest"
	"myelin/l7/dns/message"
	"myelin/test/packet"
)

// FuzzPacket gives an engine arbitrary packets: it passes them unchanged, drops them or makes valid refusals.
func FuzzPacket(f *testing.F) {
	for _, m := range []string{"query 1 | a.io A", "query 1 | b.net A", "response 1 | a.io A | a.io 60 A 192.0.2.1"} {
		f.Add(dnstest.UDP(client(podSlot), resolver(), message1(f, m)), uint32(1))
		f.Add(dnstest.UDP(resolver(), client(podSlot), message1(f, m)), uint32(0))
	}
	from, to := netip.MustParseAddrPort("[fd00::3]:5000"), netip.MustParseAddrPort("[fd00::96]:53")
	f.Add(dnstest.UDP(from, to, message1(f, "query 1 | b.net A")), uint32(1))
	f.Fuzz(func(t *testing.T, b []byte, rules uint32) {
		w := newWorld(t, "*")
		w.config.Rules = append(w.config.Rules, rule(1, "*.io"))
		w.config.Records = true
		w.configure()
		w.rules = [2]uint32{rules}
		w.Params.Record = func(*Record) {}
		before := slices.Clone(b)
		got := w.Packet(b)
		if w.names.Len() > 0 {
			t.Error("something was learnt without a query")
		}
		if got == nil || slices.Equal(got, before) {
			return
		}
		if rules == 0 {
			t.Errorf("a refusal without rules: %x", got)
		}
		text := packet.FormatIP(got, nil)
		if strings.Contains(text, "sum") || !strings.Contains(text, "udp") {
			t.Errorf("refusal is not valid: %s", text)
		}
		p, ok := message.ReadPacket(got)
		q, _ := message.ReadPacket(before)
		if !ok || p.Source != q.Destination || p.Destination != q.Source || len(p.Payload) > len(q.Payload) {
			t.Errorf("refusal %s of %s", text, packet.FormatIP(before, nil))
		}
	})
}

// FuzzAnswer lets an answer follow its query, and compares what is learnt with a plain walk.
func FuzzAnswer(f *testing.F) {
	for _, m := range []string{
		"response 1 | a.io A | a.io 60 A 192.0.2.1", "response 1 | a.io A | a.io 60 CNAME b.io | b.io 5 A 192.0.2.1",
		"response 1 | a.io A | b.io 60 A 192.0.2.1 | a.io 60 CNAME b.io | additional | a.io 9 A 192.0.2.3",
	} {
		f.Add(message1(f, m))
	}
	f.Fuzz(func(t *testing.T, m []byte) {
		w := newWorld(t, "*")
		var q message.Question
		end, ok := q.Read(m, message.HeaderLen)
		if !ok || len(m) > 1<<15 {
			return
		}
		ask := slices.Clone(m[:end])
		binary.BigEndian.PutUint16(ask[2:], 0x100)
		binary.BigEndian.PutUint16(ask[4:], 1)
		w.Packet(dnstest.UDP(client(podSlot), resolver(), ask))
		w.Packet(dnstest.UDP(resolver(), client(podSlot), m))
		walk, ok := dnstest.NewWalk(m, string(q.Name.Bytes())+".")
		for k := range w.names.entries {
			if _, found := walk.Reachable[k.addr]; ok && !found {
				t.Errorf("%v is learnt", k.addr)
			}
		}
		h, _ := message.ReadHeader(m)
		valid := ok && walk.Plain && h.Response && h.Code == 0 && h.Opcode == 0 && h.Questions == 1 && plain(walk.Names)
		if valid && w.names.Len() != len(walk.Reachable) {
			t.Errorf("%d of %d addresses are learnt", w.names.Len(), len(walk.Reachable))
		}
	})
}

// plain reports whether "*" matches one of the names.
func plain(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
	})
}
