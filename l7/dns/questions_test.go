package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"myelin/l7/dns/dnstest"
)

// questions is the map without a kernel.
type questions struct {
	mu   sync.Mutex
	rows map[Question]Passing
}

func (q *questions) PutQuestion(key *Question, p *Passing) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.rows == nil {
		q.rows = map[Question]Passing{}
	}
	q.rows[*key] = *p
	return nil
}

func (q *questions) GetQuestion(key *Question) (Passing, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p, found := q.rows[*key]
	return p, found
}

func (q *questions) DeleteQuestion(key *Question) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.rows, *key)
	return nil
}

// text is what the map has, sorted: questions, addresses, and the seconds that are left.
func (w *world) passing() string {
	var rows []string
	for key, p := range w.questions.rows {
		left := (p.Expires - w.clock.Monotonic()) / uint64(time.Second)
		rows = append(rows, fmt.Sprintf("%d %s epoch %d %v %d", key.Slot, strings.ReplaceAll(strings.TrimRight(
			key.Text[1:len(key.Text)-4], "\x00"), "\x02", "."), p.Epoch, p.Addresses, left))
	}
	slices.Sort(rows)
	return strings.Join(rows, "\n")
}

// passingWorld has a pod whose policies select a.io, with the epoch 7.
func passingWorld(t testing.TB) *world {
	w := newWorld(t, "a.io")
	w.epoch = 7
	w.config.DNS.Cache = true
	w.configure()
	return w
}

// exchanged is a query and its answer with the same ID.
func (w *world) exchanged(query, answer string) {
	w.Helper()
	if w.Packet(dnstest.UDP(client(podSlot), resolver(), message1(w, query))) == nil ||
		w.Packet(dnstest.UDP(resolver(), client(podSlot), message1(w, answer))) == nil {
		w.Fatalf("%s, %s: dropped", query, answer)
	}
}

// TestPassing has answers, and what may pass after them.
func TestPassing(t *testing.T) {
	long := strings.Repeat("a.", 15) + "io"
	for _, test := range []struct{ name, query, answer, want string }{
		{"an address", "query 1 | a.io A", "response 1 | a.io A | a.io 60 A 192.0.2.1",
			"3 a.io epoch 7 [192.0.2.1] 90"},
		{"two addresses", "query 1 | a.io AAAA", "response 1 | a.io AAAA | a.io 5 AAAA 2001:db8::1 | a.io 5 AAAA ::1",
			"3 a.io epoch 7 [2001:db8::1 ::1] 35"},
		{"no address", "query 1 | b.io A", "response 1 | b.io A", "3 b.io epoch 7 [] 30"},
		{"no name", "query 1 | b.io A", "response 1 code 3 | b.io A", "3 b.io epoch 7 [] 30"},
		{"random case", "query 1 | A.io A", "response 1 | A.io A | A.io 60 A 192.0.2.1", ""},
		{"a CNAME", "query 1 | a.io A", "response 1 | a.io A | a.io 60 CNAME b.io | b.io 60 A 192.0.2.1", ""},
		{"another type", "query 1 | a.io TXT", "response 1 | a.io TXT | a.io 60 TXT t", ""},
		{"a code with records", "query 1 | a.io A", "response 1 code 3 | a.io A | a.io 60 A 192.0.2.1", ""},
		{"another name", "query 1 | a.io A", "response 1 | a.io A | b.io 60 A 192.0.2.1", ""},
		{"truncated", "query 1 | a.io A", "response 1 tc | a.io A | a.io 60 A 192.0.2.1", ""},
		{"too many", "query 1 | a.io A", "response 1 | a.io A" + strings.Repeat(" | a.io 60 A 192.0.2.1", 9), ""},
		{"many labels", "query 1 | " + long + " A", "response 1 | " + long + " A", ""},
		{"a query that the engine has not seen", "query 2 | a.io A", "response 1 | a.io A | a.io 60 A 192.0.2.1", ""},
	} {
		for _, records := range []bool{false, true} { // those of what passes are the datapath's
			w := passingWorld(t)
			w.config.Records = records
			w.configure()
			w.exchanged(test.query, test.answer)
			if got := w.passing(); got != test.want {
				t.Errorf("%s, records %v: got %q, want %q", test.name, records, got, test.want)
			}
		}
	}
}

// TestPassedQuery has answers to queries that the datapath has passed.
func TestPassedQuery(t *testing.T) {
	w := passingWorld(t)
	w.exchanged("query 1 | a.io A", "response 1 | a.io A | a.io 60 A 192.0.2.1")
	var key Question
	for key = range w.questions.rows {
		p := w.questions.rows[key]
		for _, id := range []uint16{5, 6} {
			p.Pending = append(p.Pending, Pending{Port: client(podSlot).Port(), ID: id, Sent: w.clock.Monotonic()})
		}
		w.questions.rows[key] = p
	}
	w.clock.advance(31 * time.Second)
	answer := func(id int, text string) {
		w.Packet(dnstest.UDP(resolver(), client(podSlot), message1(t, fmt.Sprintf("response %d | %s", id, text))))
	}
	answer(4, "a.io A | a.io 60 A 192.0.2.4")
	if _, found := w.names.Get(podSlot, netip.MustParseAddr("192.0.2.4")); found || w.Counters().Unmatched != 1 {
		t.Errorf("an answer without a query is learnt, %+v", w.Counters())
	}
	answer(5, "A.io A | a.io 60 A 192.0.2.5")
	if _, found := w.names.Get(podSlot, netip.MustParseAddr("192.0.2.5")); !found {
		t.Error("the address of an answer to a passed query is not learnt")
	}
	if len(w.questions.rows) > 0 {
		t.Errorf("%s passes although the server changes the case", w.passing())
	}
	answer(6, "a.io A | a.io 60 A 192.0.2.6") // the query was taken over when the question was forgotten
	if got := w.passing(); got != "3 a.io epoch 7 [192.0.2.6] 90" {
		t.Errorf("got %q", got)
	}
	if n := w.Counters().Unmatched; n != 1 {
		t.Errorf("%d answers are unmatched, want 1", n)
	}
}

// TestPassingRenewed has an answer with another address, whose question keeps the other queries.
func TestPassingRenewed(t *testing.T) {
	w := passingWorld(t)
	w.exchanged("query 1 | a.io A", "response 1 | a.io A | a.io 60 A 192.0.2.1")
	for key, p := range w.questions.rows {
		p.Pending = []Pending{{Port: 1, ID: 2, Sent: w.clock.Monotonic()},
			{Port: client(podSlot).Port(), ID: 2, Sent: w.clock.Monotonic()}}
		w.questions.rows[key] = p
	}
	w.Packet(dnstest.UDP(resolver(), client(podSlot), message1(t, "response 2 | a.io A | a.io 60 A 192.0.2.2")))
	for _, p := range w.questions.rows {
		if len(p.Pending) != 1 || p.Pending[0].Port != 1 {
			t.Errorf("pending queries %v", p.Pending)
		}
	}
	if got := w.passing(); got != "3 a.io epoch 7 [192.0.2.2] 90" {
		t.Errorf("got %q", got)
	}
}

// TestAddressesOutlivePassing: the map has the addresses for as long as answers with them pass, and no longer.
func TestAddressesOutlivePassing(t *testing.T) {
	w := passingWorld(t)
	w.exchanged("query 1 | a.io A", "response 1 | a.io A | a.io 60 A 192.0.2.1")
	if ttl := w.Names()[0].Addresses[0].TTL; ttl != time.Minute {
		t.Errorf("the TTL is %s", ttl)
	}
	unused := func(uint16, netip.Addr) bool { return false }
	has := func() bool {
		_, found := w.names.Get(podSlot, netip.MustParseAddr("192.0.2.1"))
		return found
	}
	w.clock.advance(89 * time.Second)
	if w.Collect(unused); !has() || w.passing() == "" {
		t.Error("the address is gone before the question")
	}
	w.clock.advance(2 * time.Second)
	if w.Collect(unused); has() || w.passing() != "" {
		t.Errorf("after the question has expired, the address is there: %v, %q passes", has(), w.passing())
	}
}

// TestPassingEnds has what ends it: records, the key, pods that are gone, addresses that give way.
func TestPassingEnds(t *testing.T) {
	for name, end := range map[string]func(*world){
		"the key":  func(w *world) { w.config.DNS.Cache = false },
		"the pod":  func(w *world) { w.config.Endpoints = nil },
		"another":  func(w *world) { w.config.Endpoints[0].Pod.Name = "other" },
		"an limit": func(w *world) { w.config.DNS.MaxAddressesPerName = 1 },
	} {
		w := passingWorld(t)
		w.exchanged("query 1 | a.io A", "response 1 | a.io A | a.io 60 A 192.0.2.1")
		if w.passing() == "" {
			t.Fatal("nothing passes")
		}
		end(w)
		w.configure()
		if name == "an limit" {
			w.exchanged("query 2 | a.io AAAA", "response 2 | a.io AAAA | a.io 600 AAAA 2001:db8::1")
			if got := w.passing(); strings.Contains(got, "192.0.2.1") {
				t.Errorf("%s: %s passes", name, got)
			}
		} else if got := w.passing(); got != "" || w.Engine.questions.Load() != 0 {
			t.Errorf("%s: %s passes", name, got)
		}
	}
}

// TestRenew has the datapath see answers: their messages pass for longer, and their addresses stay for as long.
func TestRenew(t *testing.T) {
	first, second := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for _, test := range []struct {
		name    string
		advance time.Duration
		seen    []netip.Addr
		until   time.Duration // of TTLs, from when the answers are seen; 0: none is seen
		want    string        // after Renew
	}{
		{"no answer", 21 * time.Second, nil, 0, "3 a.io epoch 7 [192.0.2.1 192.0.2.2] 69"},
		{"an answer with the same TTL", 21 * time.Second, []netip.Addr{first, second}, time.Minute,
			"3 a.io epoch 7 [192.0.2.1 192.0.2.2] 90"},
		{"one address", 21 * time.Second, []netip.Addr{second}, time.Minute, "3 a.io epoch 7 [192.0.2.2] 90"},
		{"no address", 75 * time.Second, nil, time.Second, "3 a.io epoch 7 [] 31"},
		{"a TTL that has counted down", 21 * time.Second, []netip.Addr{first, second}, 39 * time.Second,
			"3 a.io epoch 7 [192.0.2.1 192.0.2.2] 69"},
		{"too early", 19 * time.Second, []netip.Addr{first, second}, time.Minute,
			"3 a.io epoch 7 [192.0.2.1 192.0.2.2] 71"},
	} {
		w := passingWorld(t)
		w.exchanged("query 1 | a.io A", "response 1 | a.io A | a.io 60 A 192.0.2.1 | a.io 60 A 192.0.2.2")
		w.clock.advance(test.advance)
		for key, p := range w.questions.rows {
			p.Pending = []Pending{{Port: 1, ID: 2, Sent: w.clock.Monotonic()}}
			if test.until != 0 {
				p.Seen, p.SeenUntil = test.seen, w.clock.Monotonic()+uint64(test.until)
			}
			w.questions.rows[key] = p
		}
		w.Renew()
		if got := w.passing(); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
		for _, p := range w.questions.rows {
			if len(p.Pending) != 1 {
				t.Errorf("%s: queries that wait for an answer are lost", test.name)
			}
		}
		if len(test.seen) == 1 {
			w.clock.advance(71 * time.Second)
			w.Collect(func(uint16, netip.Addr) bool { return false })
			_, has := w.names.Get(podSlot, first)
			if _, renewed := w.names.Get(podSlot, second); has || !renewed {
				t.Errorf("%s: the first address is there: %v, the second: %v", test.name, has, renewed)
			}
		}
	}
}

// TestQuestionsOfOnePod: a pod that asks for more names than there is room for gives up its own questions.
func TestQuestionsOfOnePod(t *testing.T) {
	w := passingWorld(t)
	w.config.Endpoints = append(w.config.Endpoints, pod(podSlot+1))
	w.configure()
	other := client(podSlot + 1)
	if w.Packet(dnstest.UDP(other, resolver(), message1(t, "query 1 | z.io A"))) == nil ||
		w.Packet(dnstest.UDP(resolver(), other, message1(t, "response 1 | z.io A"))) == nil {
		t.Fatal("dropped")
	}
	for i := range maxQuestions {
		w.exchanged(fmt.Sprintf("query 1 | n%d.io A", i), fmt.Sprintf("response 1 | n%d.io A", i))
	}
	total := maxQuestions - maxQuestions/4
	if n := len(w.questions.rows); n < total-1 || n > total+1 || int(w.Engine.questions.Load()) != n {
		t.Errorf("%d questions, counted %d, want %d", n, w.Engine.questions.Load(), total)
	}
	if _, found := w.GetQuestion(podSlot+1, "\x01z\x02io\x00\x00\x01\x00\x01"); !found {
		t.Error("the question of another pod gave way")
	}
}

// GetQuestion finds a question of a pod to the resolver.
func (w *world) GetQuestion(slot int, text string) (Passing, bool) {
	return w.questions.GetQuestion(&Question{uint16(slot), resolver(), text})
}
