package oracle

import (
	"fmt"
	"slices"
)

// answers: a kernel sent it when it had received the attempt, of which it quotes or repeats the payload.
func (m *Model) answers(a *Attempt, s Seen) bool {
	if !s.Whole {
		return false
	}
	for _, f := range a.Real {
		back := f.reverse()
		if f.SPort == 0 && f.DPort == 0 { // its ports could not be read
			back.SPort, back.DPort = s.SPort, s.DPort
		}
		if m.place(f.Dst) == nil {
			back.Src = s.Src // what was sent to a group is answered by each of its members
		}
		if own := m.nodeAddress(back.Dst); own == s.Dst {
			back.Dst = own // a raw socket of a node does not say to which of its addresses a packet came
		}
		if s.Flow == back && s.Flow != f {
			return true
		}
	}
	if s.Error && a.Outer.IsValid() && s.Quoted.Src == a.Outer {
		return true // it is about the packet around the attempt
	}
	same := func(f Flow) bool { return f.Proto == s.Proto && f.DPort == s.DPort }
	return s.Error && !slices.ContainsFunc(a.Real, same)
}

// checkAnswer checks a packet that is no attempt: kernels answer what they have received.
func (m *Model) checkAnswer(to *Place, s Seen) string {
	const reset = 4
	switch {
	case !to.Pod || s.Fragment || !s.Whole || s.Src == s.Dst:
		return ""
	case s.Proto == TCP && s.TCPFlags&reset != 0:
		return "" // also by which the datapath cuts a connection
	case s.Error && (to.Has(s.Quoted.Src) || m.either(s.Quoted)):
		return ""
	case s.Error && m.passes(s.Flow, false, false):
		return "" // policies allow the message itself, whatever it quotes
	case !s.Error && m.either(s.Flow):
		return ""
	}
	why := "; " + m.World.Path(probe(s.Flow)).Why
	return fmt.Sprintf("%s, flags %#x, is neither allowed nor an answer to what is", s.Flow, s.TCPFlags) + why
}

func (m *Model) either(f Flow) bool {
	for _, honest := range []bool{true, false} {
		if m.passes(f, honest, false) || m.passes(f.reverse(), honest, false) {
			return true
		}
	}
	return false
}
