package service

import (
	"testing"
)

func TestArrange(t *testing.T) {
	refs := func(ids ...uint32) (out []BackendRef) {
		for _, id := range ids {
			out = append(out, BackendRef{ID: id, Weight: 1})
		}
		return out
	}
	for name, tc := range map[string]struct{ last, want, got []BackendRef }{
		"first":          {nil, refs(1, 2), refs(1, 2)},
		"same":           {refs(2, 1), refs(1, 2), refs(2, 1)},
		"one more":       {refs(2, 1), refs(0, 1, 2), refs(2, 1, 0)},
		"one less":       {refs(4, 3, 2, 1), refs(1, 2, 4), refs(4, 1, 2)},
		"last goes":      {refs(4, 3, 2, 1), refs(2, 3, 4), refs(4, 3, 2)},
		"many go":        {refs(1, 2, 3, 4, 5, 6), refs(2, 5), refs(5, 2)},
		"tail goes":      {refs(1, 2, 3, 4), refs(1), refs(1)},
		"another":        {refs(1, 2, 3), refs(1, 3, 9), refs(1, 9, 3)},
		"others, fewer":  {refs(1, 2, 3), refs(8), refs(8)},
		"none":           {refs(1, 2), nil, refs()},
		"another weight": {refs(2, 1), []BackendRef{{1, 1}, {2, 5}}, []BackendRef{{2, 5}, {1, 1}}},
	} {
		if got := arrange(tc.last, tc.want); !SameRefs(got, tc.got) {
			t.Errorf("%s: got %v, want %v", name, got, tc.got)
		}
	}
}
