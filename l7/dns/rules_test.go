package dns

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"myelin/l7/config"
	"myelin/l7/dns/dnstest"
	"myelin/policy"
	"myelin/test/packet"
)

// rule has a part for each argument: patterns, separated by spaces.
func rule(number uint32, parts ...string) config.Rule {
	r := config.Rule{Number: number}
	for _, part := range parts {
		r.Parts = append(r.Parts, config.Part{L7: policy.L7{DNS: patterns(strings.Fields(part)...)}})
	}
	return r
}

// TestRules has queries that one or two rules decide about.
func TestRules(t *testing.T) {
	w := newWorld(t)
	web := config.Rule{Number: 6, Parts: []config.Part{{L7: policy.L7{HTTP: []policy.HTTPRule{{Path: "/"}}}}}}
	w.config.Rules = []config.Rule{
		rule(1, "a.io *.b.io", "c.io"), rule(2, "*.io"), rule(3, "*"), rule(4, ""), {Number: 5}, web,
	}
	w.configure()
	for _, test := range []struct {
		rules   [2]uint32
		name    string
		allowed bool
	}{
		{[2]uint32{}, "a.io", true},
		{[2]uint32{1}, "a.io", true},
		{[2]uint32{1}, "A.IO", true},
		{[2]uint32{1}, "x.b.io", true},
		{[2]uint32{1}, "c.io", true},
		{[2]uint32{1}, "b.io", false},
		{[2]uint32{1}, "a.io.default.svc.cluster.local", false},
		{[2]uint32{1, 2}, "a.io", true},
		{[2]uint32{1, 2}, "x.b.io", false},
		{[2]uint32{0, 2}, "x.io", true},
		{[2]uint32{0, 2}, "x.b.io", false},
		{[2]uint32{3}, "any.thing", true},
		{[2]uint32{3}, "a b.io", true},
		{[2]uint32{2}, "a+b.io", false},
		{[2]uint32{3}, ".", true},
		{[2]uint32{4}, "any.thing", true},  // a part without L7 rules
		{[2]uint32{5}, "any.thing", false}, // a rule without parts
		{[2]uint32{6}, "any.thing", false},
		{[2]uint32{77}, "any.thing", false},
		{[2]uint32{3, 77}, "any.thing", false},
	} {
		w.rules = test.rules
		m := queryFor(t, 1, test.name)
		b := dnstest.UDP(client(podSlot), resolver(), m)
		got := w.Packet(slices.Clone(b))
		if allowed := slices.Equal(got, b); allowed != test.allowed || got == nil {
			t.Errorf("rules %v, %q: allowed %v, want %v: %x", test.rules, test.name, allowed, test.allowed, got)
		}
	}
}

// queryFor is a query for names that may contain spaces.
func queryFor(t *testing.T, id uint16, names ...string) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: id, RecursionDesired: true}}
	for _, text := range names {
		name, err := dnsmessage.NewName(strings.TrimSuffix(text, ".") + ".")
		if err != nil {
			t.Fatal(err)
		}
		q := dnsmessage.Question{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
		m.Questions = append(m.Questions, q)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRefusal compares refusals with what they should be: package packet computes their checksums on its own.
func TestRefusal(t *testing.T) {
	for _, test := range []struct {
		name, layers string
		family       packet.Family
		code         int
	}{
		{"IPv4", "ip 10.1.0.3 > 10.96.0.10", packet.IPv4, 5},
		{"IPv4, NXDOMAIN", "ip 10.1.0.3 > 10.96.0.10", packet.IPv4, 3},
		{"IPv4, no code", "ip 10.1.0.3 > 10.96.0.10", packet.IPv4, 0},
		{"IPv4, options", "ip 10.1.0.3 > 10.96.0.10 opts 01010101", packet.IPv4, 5},
		{"IPv6", "ip fd00::3 > fd00::96", packet.IPv6, 5},
		{"IPv6, extension", "ip fd00::3 > fd00::96 | hbh | dstopts", packet.IPv6, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.config.DNS.RejectCode, w.config.Records = test.code, true
			w.config.Rules = []config.Rule{rule(1, "a.io")}
			w.configure()
			w.rules = [2]uint32{1}
			var record Record
			w.Params.Record = func(r *Record) { record = *r }
			m := queryFor(t, 7, "b.io")
			b := parseIP(t, test.layers+" | udp 40000 > 53 | "+hexPayload(append(m, 1, 2, 3)), test.family)
			got := w.Packet(b)
			code := test.code
			if code == 0 {
				code = 5
			}
			binary.BigEndian.PutUint16(m[2:], 0x8100|uint16(code))
			words := strings.Fields(test.layers)
			swapped := "ip " + words[3] + " > " + words[1] + " | udp 53 > 40000 | " + hexPayload(m)
			want := parseIP(t, swapped, test.family)
			if diff := packet.DiffIP(want, got, nil, "ip.id", "ip.df"); diff != "" || got == nil {
				t.Errorf("want other bytes:\n%s", diff)
			}
			if record.Verdict != Denied || record.Query != "b.io." || int(record.Code) != code || record.Response {
				t.Errorf("record %+v", record)
			}
			if got := w.Counters(); got.Denied != 1 || got.Queries != 1 {
				t.Errorf("counters %+v", got)
			}
		})
	}
}

func hexPayload(b []byte) string {
	const digits = "0123456789abcdef"
	text := []byte("hex:")
	for _, c := range b {
		text = append(text, digits[c>>4], digits[c&15])
	}
	return string(text)
}

func parseIP(t testing.TB, text string, f packet.Family) []byte {
	t.Helper()
	b, err := packet.ParseIP(text, f, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestNotUnderstood has packets and queries that are dropped where rules apply, and else passed.
func TestNotUnderstood(t *testing.T) {
	good := queryFor(t, 1, "a.io")
	edit := func(at int, value byte) []byte {
		b := slices.Clone(good)
		b[at] = value
		return b
	}
	for _, test := range []struct {
		name string
		m    []byte
	}{
		{"empty", nil},
		{"short header", good[:11]},
		{"no question", edit(5, 0)},
		{"more questions than there are", edit(5, 2)},
		{"many questions", edit(4, 1)},
		{"cut off name", good[:15]},
		{"cut off class", good[:len(good)-1]},
		{"pointer", edit(12, 0xc0)},
		{"reserved label type", edit(12, 0x41)},
		{"dot in a label", edit(15, '.')},
		{"response", edit(2, 0x81)},
		{"update", edit(2, 0x29)},
		{"long name", append(append(good[:12:12], longName(5)...), 0, 1, 0, 1)},
	} {
		for _, rules := range [][2]uint32{{}, {1}} {
			w := newWorld(t)
			w.config.Rules = []config.Rule{rule(1, "*")}
			w.configure()
			w.rules = rules
			b := dnstest.UDP(client(podSlot), resolver(), test.m)
			got := w.Packet(slices.Clone(b))
			if wantPassed := rules == [2]uint32{}; slices.Equal(got, b) != wantPassed || (got == nil) == wantPassed {
				t.Errorf("%s, rules %v: got %x", test.name, rules, got)
			}
			if w.Counters().Malformed != 1 {
				t.Errorf("%s: counters %+v", test.name, w.Counters())
			}
		}
	}
}

// longName has labels of 63 characters.
func longName(labels int) []byte {
	var b []byte
	for range labels {
		b = append(append(b, 63), strings.Repeat("a", 63)...)
	}
	return append(b, 0)
}

func TestQuestions(t *testing.T) {
	w := newWorld(t)
	w.config.Rules = []config.Rule{rule(1, "a.io b.net")}
	w.configure()
	w.rules = [2]uint32{1}
	for _, test := range []struct {
		names   string
		allowed bool
	}{{"a.io b.net", true}, {"a.io c.org", false}, {"c.org a.io", false}} {
		b := dnstest.UDP(client(podSlot), resolver(), queryFor(t, 1, strings.Fields(test.names)...))
		if got := w.Packet(slices.Clone(b)); slices.Equal(got, b) != test.allowed {
			t.Errorf("%s: allowed %v", test.names, !test.allowed)
		}
	}
}

func TestFragments(t *testing.T) {
	for _, family := range []packet.Family{packet.IPv4, packet.IPv6} {
		from, to := "10.1.0.3 > 10.96.0.10", "10.96.0.10 > 10.1.0.3"
		if family == packet.IPv6 {
			from, to = "fd00::3 > fd00::96", "fd00::96 > fd00::3"
		}
		for _, test := range []struct {
			text  string
			rules uint32
			pass  bool
		}{
			{"ip " + from + " frag 7 mf proto udp | " + hexPayload([]byte{156, 64, 0, 53, 0, 16, 0, 0}), 0, true},
			{"ip " + from + " frag 7 mf proto udp | " + hexPayload([]byte{156, 64, 0, 53, 0, 16, 0, 0}), 1, false},
			{"ip " + from + " frag 7 off 8 proto udp | " + hexPayload(make([]byte, 8)), 1, true},
			{"ip " + to + " frag 7 mf proto udp | " + hexPayload([]byte{0, 53, 156, 64, 0, 16, 0, 0}), 1, true},
			{"ip " + to + " frag 7 off 8 proto udp | " + hexPayload(make([]byte, 8)), 1, true},
		} {
			w := newWorld(t)
			w.config.Rules = []config.Rule{rule(1, "*.io")}
			w.configure()
			w.rules = [2]uint32{test.rules}
			b := parseIP(t, test.text, family)
			if got := w.Packet(b); (got != nil) != test.pass || w.Counters().Fragments != 1 {
				t.Errorf("%s, rule %d: got %x, want pass %v; %+v", test.text, test.rules, got, test.pass, w.Counters())
			}
		}
	}
}

// TestPorts has servers on other ports than 53, and 53 on both ends.
func TestPorts(t *testing.T) {
	for _, ports := range [][2]uint16{{40000, 5353}, {53, 53}, {53, 40000}} {
		w := newWorld(t, "a.io")
		w.config.Rules = []config.Rule{rule(1, "a.io")}
		w.configure()
		w.rules = [2]uint32{1}
		from := netip.AddrPortFrom(podAddr(podSlot, false), ports[0])
		to := netip.AddrPortFrom(resolver().Addr(), ports[1])
		w.Packet(dnstest.UDP(from, to, queryFor(t, 1, "a.io")))
		w.Packet(dnstest.UDP(to, from, message1(t, "response 1 | a.io A | a.io 60 A 192.0.2.1")))
		if want := "192.0.2.1 1"; ports[1] != 40000 {
			w.want(podSlot, want)
		} else {
			w.want(podSlot, "") // what goes to port 53 is no answer
		}
		b := dnstest.UDP(from, to, message1(t, "response 1 | b.io A"))
		if got := w.Packet(b); got != nil {
			t.Errorf("ports %v: a response in the direction of queries passes", ports)
		}
		if got := w.Packet(dnstest.UDP(from, to, queryFor(t, 1, "b.io"))); got == nil || got[28+3]&15 != 5 {
			t.Errorf("ports %v: got %x, want a refusal", ports, got)
		}
		w.rules = [2]uint32{}
		if got := w.Packet(slices.Clone(b)); !slices.Equal(got, b) {
			t.Errorf("ports %v: without rules, got %x", ports, got)
		}
	}
}
