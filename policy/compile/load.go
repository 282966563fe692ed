package compile

import (
	"math"
	"net/netip"
)

// backlog is what a large change of an address set has still to mark.
type backlog struct {
	steps []step
	// coming are how many cells it may make, of single addresses and of prefixes.
	pending [2]int
	// next is what the set is to hold after that, if that has changed since.
	next *contents
}

type contents struct{ include, except []netip.Prefix }

// step marks what only after has, if it adds, or else unmarks what only before
// has. What covers others is added before them and goes after them: so what
// lies in it is looked at once.
type step struct {
	before, after []netip.Prefix
	except, adds  bool
}

// markCost is what it costs to mark a prefix, where comparing two is 1.
const markCost = 64

// startLoad makes a set hold something else: at once if that is little, or if there
// is no room for both. Else what is in both never leaves it.
func (s *space) startLoad(set *addressSet, include, except []netip.Prefix) {
	b := &backlog{steps: []step{
		{set.except, except, true, true}, {set.include, include, false, true}, {set.include, include, false, false},
		{set.except, except, true, false},
	}}
	n := len(set.include) + len(set.except) + len(include) + len(except)
	room := true
	if s.slice > 0 && n > s.slice {
		before, after := sizes(set.include, set.except), sizes(include, except)
		for kind := range b.pending {
			room = room && s.used(kind)+after[kind] <= s.room[kind]
			b.pending[kind] = max(0, after[kind]-before[kind])
			s.pending[kind] += b.pending[kind]
		}
	}
	set.include, set.except, set.backlog = include, except, b
	if s.slice == 0 || n <= s.slice || !room {
		s.markUpTo(set, math.MaxInt)
		return
	}
	s.loads = append(s.loads, set)
}

// sizes are how many of the prefixes are single addresses, and how many not.
func sizes(lists ...[]netip.Prefix) (n [2]int) {
	for _, list := range lists {
		for _, p := range list {
			n[boolIndex(!p.IsSingleIP())]++
		}
	}
	return n
}

// markUpTo does what costs n, and returns what is left of n: something only if the
// backlog is over. Then the set has none.
func (s *space) markUpTo(set *addressSet, n int) int {
	for b := set.backlog; len(b.steps) > 0; b.steps = b.steps[1:] {
		st := &b.steps[0]
		for n > 0 {
			p, some := st.take()
			if n--; !p.IsValid() {
				if some {
					continue
				}
				break
			}
			n -= markCost
			s.mark(p, set.id, st.except, st.adds)
			if kind := boolIndex(!p.IsSingleIP()); st.adds && b.pending[kind] > 0 {
				b.pending[kind]--
				s.pending[kind]--
			}
		}
		if n <= 0 {
			return 0
		}
	}
	for kind, left := range set.backlog.pending {
		s.pending[kind] -= left
	}
	set.backlog = nil
	return n
}

// take looks at one prefix more, which is invalid if there is nothing to do
// about it, and reports whether there was one.
func (st *step) take() (p netip.Prefix, some bool) {
	from, other := &st.after, &st.before
	if !st.adds {
		from, other = other, from
	}
	if len(*from) == 0 {
		return p, false
	}
	at := func(list []netip.Prefix) *netip.Prefix {
		if st.adds {
			return &list[0]
		}
		return &list[len(list)-1]
	}
	order := -1
	if len(*other) > 0 {
		if order = at(*from).Compare(*at(*other)); !st.adds {
			order = -order
		}
	}
	if order < 0 {
		p = *at(*from)
	}
	if order <= 0 {
		*from = st.rest(*from)
	}
	if order >= 0 {
		*other = st.rest(*other)
	}
	return p, true
}

func (st *step) rest(list []netip.Prefix) []netip.Prefix {
	if st.adds {
		return list[1:]
	}
	return list[:len(list)-1]
}

// advance marks the next slice of what is to come.
func (s *space) advance() {
	for n := s.slice * markCost; n > 0 && len(s.loads) > 0; {
		set := s.loads[0]
		b := set.backlog
		if n = s.markUpTo(set, n); set.backlog != nil {
			continue
		}
		s.loads = s.loads[1:]
		s.finishLoad(set, b.next)
	}
}

// finishLoad is told that all of a set's backlog is marked.
func (s *space) finishLoad(set *addressSet, next *contents) {
	switch {
	case next != nil:
		s.fillSet(set, next.include, next.except)
	case len(set.users) == 0 && set.id >= firstSet:
		delete(s.sets, set.id)
	}
}

// finishLoads marks all that is to come now: it doesn't fit, and shall be tried again
// as a whole.
func (s *space) finishLoads() {
	for len(s.loads) > 0 {
		set := s.loads[0]
		b := set.backlog
		s.markUpTo(set, math.MaxInt)
		s.loads = s.loads[1:]
		s.finishLoad(set, b.next)
	}
}
