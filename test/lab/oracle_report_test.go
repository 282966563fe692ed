package labtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/test/lab/oracle"
)

// maxShrunk is how many violations by packets, and how many by lasting connections, are repeated to find the shortest
// way to them; twice as many, if they are wrong for another reason than those before. Further ones are only named.
const maxShrunk = 5

// isNew tells whether no violation of this kind was reported before, and whether it is to be repeated.
func (z *fuzz) isNew(s sighting) (reported, repeated bool) {
	what := s.by
	if s.sent != nil {
		what += " " + s.sent.Kind
	}
	why := strings.Fields(s.why)
	reason := strings.Join(why[:min(4, len(why))], " ")
	if z.shrunk >= maxShrunk {
		what = "" // a datapath without any check has hundreds of kinds
	}
	if z.reported[what+" "+reason] {
		return false, false
	}
	repeated = z.shrunk < maxShrunk || !z.reported[" "+reason] && z.shrunk < 2*maxShrunk
	z.reported[what+" "+reason], z.reported[" "+reason] = true, true
	if repeated {
		z.shrunk++
	}
	return true, repeated
}

// reportPackets prints violations by packets of kinds that were not seen before, with the fewest packets that show them
// again.
func (z *fuzz) reportPackets(t *testing.T, found []sighting, documents []string) {
	t.Helper()
	for _, s := range found {
		if s.lasting != nil {
			continue
		}
		reported, repeated := z.isNew(s)
		if !reported {
			continue
		}
		t.Errorf("after %d frames %s of %s received %s: %s", s.frames, s.by, s.at.Name, s.seen.Flow, s.why)
		if !repeated {
			continue
		}
		text := z.replayText(s.sent)
		t.Logf("%s=%d %s=%s; packets and policies:\n%s\n%s",
			envSeed, z.seed, envMode, z.name, text, strings.Join(append(slices.Clone(documents), z.denylist), "---\n"))
	}
}

// replayText are the packets by which it happens again.
func (z *fuzz) replayText(a *oracle.Attempt) string {
	if a == nil {
		return "(no packet of the fuzzer's)\n"
	}
	list := oracle.Shrink(z.history, a, z.again)
	if list == nil {
		return "it did not happen again; the packet was\n" + a.Text(z.names)
	}
	var text strings.Builder
	for _, each := range list {
		text.WriteString(each.Text(z.names))
	}
	return text.String()
}

// again sends attempts anew, to a datapath that knows no flow, and says whether something of the last one is received
// that should not be.
func (z *fuzz) again(list []*oracle.Attempt) bool {
	z.flush()
	z.discard()
	z.model.Restart()
	for i, a := range list {
		z.model.Sent(a)
		z.send(a)
		if i%batch == batch-1 {
			z.checked(0)
		}
	}
	last := list[len(list)-1]
	return slices.ContainsFunc(z.checked(patience(20*time.Millisecond)), func(s sighting) bool {
		return s.sent == last
	})
}

// reportLasting prints violations by connections that stayed open, of kinds that were not seen before, with the fewest
// policies that show them again. No policy is in force before and after.
func (z *fuzz) reportLasting(t *testing.T, found []sighting, documents []string) {
	t.Helper()
	for _, s := range found {
		what := fmt.Sprint(s.by, s.lasting != nil && s.hangs)
		if s.lasting == nil || z.reported[what+s.lasting.way] {
			continue
		}
		z.reported[what+s.lasting.way] = true
		t.Errorf("after %d frames %s of %s received by a connection %s, %s: %s",
			s.frames, s.by, s.at.Name, s.lasting.way, s.seen.Flow, s.why)
		if z.repeated++; z.repeated > maxShrunk {
			continue
		}
		text := z.sentAbout(s.lasting.Flow) + "policies:\n" +
			strings.Join(append(slices.Clone(documents), z.denylist), "---\n")
		if !s.hangs {
			text = z.lastingText(t, s.lasting, documents)
		}
		t.Logf("%s=%d %s=%s; %s", envSeed, z.seed, envMode, z.name, text)
	}
}

// sentAbout are this round's packets that say to be of a connection.
func (z *fuzz) sentAbout(f oracle.Flow) string {
	var text strings.Builder
	text.WriteString("packets in its client's name:\n")
	for _, a := range z.history {
		if slices.Contains(a.Real, f) {
			text.WriteString(a.Text(z.names))
		}
	}
	return text.String()
}

// lastingText is the shortest way to the violation by a connection that is known.
func (z *fuzz) lastingText(t *testing.T, l *lasting, now []string) string {
	t.Helper()
	text := fmt.Sprintf("the connection was %s > %s by %s\n", l.place[0].Name, l.place[1].Name, l.Flow)
	var before []string
	if !z.happens(t, l, nil, now) {
		if before = l.before; !z.happens(t, l, before, now) {
			text += "it did not happen again;\n"
		}
	}
	for i := len(now) - 1; i >= 0 && len(now) > 1; i-- {
		if less := slices.Delete(slices.Clone(now), i, i+1); z.happens(t, l, before, less) {
			now = less
		}
	}
	text += fmt.Sprintf("it was opened under %d policies:\n%s\n", len(before), strings.Join(before, "---\n"))
	return text + fmt.Sprintf("and went on under these:\n%s\n", strings.Join(now, "---\n"))
}

// happens opens a connection like another one under some policies, has others follow, and tells whether they deny it
// and something is received all the same.
func (z *fuzz) happens(t *testing.T, like *lasting, before, now []string) bool {
	t.Helper()
	z.model.Enforce(z.worldOf(t, before))
	remove := func() {}
	enforce := func(documents []string) {
		remove()
		if remove = func() {}; len(documents) > 0 {
			file := z.enforce(t, documents...)
			remove = func() { check(t, z.Delete(t.Context(), file)) }
		}
	}
	enforce(before)
	defer func() { remove() }()
	l := like.again()
	if !z.model.Opens(l.Connection) || z.connect(t, l) != nil {
		return false
	}
	defer l.close()
	enforce(now)
	z.model.Enforce(z.worldOf(t, now))
	time.Sleep(patience(20 * time.Millisecond))
	l.hear(0)
	l.hear(1)
	l.send()
	time.Sleep(patience(20 * time.Millisecond))
	got := [2]int{l.hear(0), l.hear(1)}
	return got[0] > 0 && z.model.Denied(l.Connection, true) != "" ||
		got[1] > 0 && z.model.Denied(l.Connection, false) != ""
}
