package compile

import (
	"slices"

	"myelin/policy"
)

// labeled is the labels of a thing that selectors select; U is the type of
// users of selectors.
type labeled[U comparable, T any] struct {
	thing  T
	labels policy.LabelSet
	by     []*selection[U, T]
}

// selection is a selector, all that it selects, and its users.
type selection[U comparable, T any] struct {
	selector policy.Selector
	text     string
	things   map[*labeled[U, T]]struct{}
	users    map[U]struct{}
}

// keyValue is a label whatever its source.
type keyValue struct{ key, value string }

// selectors finds what a selector selects and which selectors select a thing, both by
// what may match alone.
type selectors[U comparable, T any] struct {
	all     map[string]*selection[U, T]                // by text
	byLabel map[keyValue]map[*selection[U, T]]struct{} // those that need one of some values, under each
	byKey   map[string]map[*selection[U, T]]struct{}   // those that need a key
	others  map[*selection[U, T]]struct{}
	things  map[*labeled[U, T]]struct{}
	having  map[keyValue][]*labeled[U, T]
}

func newSelectors[U comparable, T any]() *selectors[U, T] {
	return &selectors[U, T]{
		all: map[string]*selection[U, T]{}, byLabel: map[keyValue]map[*selection[U, T]]struct{}{},
		byKey:  map[string]map[*selection[U, T]]struct{}{},
		others: map[*selection[U, T]]struct{}{}, things: map[*labeled[U, T]]struct{}{},
		having: map[keyValue][]*labeled[U,
			T]{},
	}
}

// add makes a thing selectable.
func (s *selectors[U, T]) add(t *labeled[U, T]) {
	s.things[t] = struct{}{}
	s.match(s.others, t)
	for i, l := range t.labels {
		kv := keyValue{l.Key, l.Value}
		s.having[kv] = append(s.having[kv], t)
		s.match(s.byLabel[kv], t)
		if i == 0 || t.labels[i-1].Key != l.Key {
			s.match(s.byKey[l.Key], t)
		}
	}
}

func (s *selectors[U, T]) match(candidates map[*selection[U, T]]struct{}, t *labeled[U, T]) {
	for c := range candidates {
		if _, has := c.things[t]; !has && c.selector.MatchesSet(t.labels) {
			c.take(t)
		}
	}
}

func (c *selection[U, T]) take(t *labeled[U, T]) {
	c.things[t] = struct{}{}
	t.by = append(t.by, c)
}

// remove undoes add.
func (s *selectors[U, T]) remove(t *labeled[U, T]) {
	delete(s.things, t)
	for _, l := range t.labels {
		kv := keyValue{l.Key, l.Value}
		if s.having[kv] = removeElement(s.having[kv], t); len(s.having[kv]) == 0 {
			delete(s.having, kv)
		}
	}
	for _, c := range t.by {
		delete(c.things, t)
	}
	t.by = nil
}

// removeElement removes an element, and doesn't keep the order.
func removeElement[T comparable](list []T, x T) []T {
	if i := slices.Index(list, x); i >= 0 {
		list[i] = list[len(list)-1]
		clear(list[len(list)-1:])
		list = list[:len(list)-1]
	}
	return list
}

// use finds the selection of a selector, or makes it.
func (s *selectors[U, T]) use(sel policy.Selector, user U) *selection[U, T] {
	text := sel.Key()
	c, ok := s.all[text]
	if !ok {
		c = &selection[U, T]{selector: sel, text: text, things: map[*labeled[U, T]]struct{}{}, users: map[U]struct{}{}}
		s.all[text] = c
		s.file(c, func(m map[*selection[U, T]]struct{}) { m[c] = struct{}{} })
		s.fill(c)
	}
	c.users[user] = struct{}{}
	return c
}

// release undoes use.
func (s *selectors[U, T]) release(c *selection[U, T], user U) {
	delete(c.users, user)
	if len(c.users) > 0 {
		return
	}
	for t := range c.things {
		t.by = removeElement(t.by, c)
	}
	delete(s.all, c.text)
	s.file(c, func(m map[*selection[U, T]]struct{}) { delete(m, c) })
}

// file calls f with the places where a new thing finds the selection.
func (s *selectors[U, T]) file(c *selection[U, T], f func(map[*selection[U, T]]struct{})) {
	var best *policy.Requirement
	for i, r := range c.selector {
		// What all of a namespace have says less than another label.
		if r.Op == policy.In && (best == nil || len(r.Key) < len(best.Key)) {
			best = &c.selector[i]
		}
	}
	if best != nil {
		for _, v := range best.Values {
			place(s.byLabel, keyValue{best.Key, v}, f)
		}
		return
	}
	if i := slices.IndexFunc(c.selector, func(r policy.Requirement) bool { return r.Op == policy.Exists }); i >= 0 {
		place(s.byKey, c.selector[i].Key, f)
		return
	}
	f(s.others)
}

func place[K, T comparable](m map[K]map[T]struct{}, key K, f func(map[T]struct{})) {
	if m[key] == nil {
		m[key] = map[T]struct{}{}
	}
	f(m[key])
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

// fill finds what a new selection selects.
func (s *selectors[U, T]) fill(c *selection[U, T]) {
	var best *policy.Requirement
	fewest := len(s.things)
	for i, r := range c.selector {
		if n := s.count(&r); r.Op == policy.In && n <= fewest {
			best, fewest = &c.selector[i], n
		}
	}
	if best == nil {
		for t := range s.things {
			if c.selector.MatchesSet(t.labels) {
				c.take(t)
			}
		}
		return
	}
	for _, v := range best.Values {
		for _, t := range s.having[keyValue{best.Key, v}] {
			if _, has := c.things[t]; !has && c.selector.MatchesSet(t.labels) {
				c.take(t)
			}
		}
	}
}

func (s *selectors[U, T]) count(r *policy.Requirement) (n int) {
	for _, v := range r.Values {
		n += len(s.having[keyValue{r.Key, v}])
	}
	return n
}
