package bpf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestReplacements: programs that wait are replaced together, in order; a later one at the same place takes the place
// of an earlier one, and what is detached meanwhile is not replaced.
func TestReplacements(t *testing.T) {
	var log []string
	unclosed := errors.New("unclosed")
	one := func(at, name string, fails error) replacement {
		return replacement{
			at:    at,
			swap:  func() error { log = append(log, "swap "+name); return fails },
			done:  func(err error) error { log = append(log, fmt.Sprint("done ", name, " ", err)); return err },
			close: func() error { log = append(log, "close "+name); return unclosed },
		}
	}
	var r replacements
	later := func(at, name string, fails error) bool {
		later, err := r.later(one(at, name, fails))
		if err != nil && !errors.Is(err, unclosed) {
			t.Error(err)
		}
		return later
	}
	if later("a", "a", nil) || len(log) != 0 {
		t.Error("a program waits without need")
	}
	r.wait = true
	refused := errors.New("refused")
	if !later("a", "a1", nil) || !later("b", "b", nil) || !later("a", "a2", nil) || !later("c", "c", refused) {
		t.Error("a program does not wait")
	}
	if err := r.forget("b", "x"); !errors.Is(err, unclosed) {
		t.Errorf("forget: %v, want the error of close", err)
	}
	if err := r.run(); !errors.Is(err, refused) {
		t.Errorf("%v, want the error of c", err)
	}
	want := []string{"close a1", "close b", "swap a2", "swap c",
		"done a2 <nil>", "close a2", "done c refused", "close c"}
	if !slices.Equal(log, want) {
		t.Errorf("%s, want %s", strings.Join(log, ", "), strings.Join(want, ", "))
	}
	if r.waits() || later("a", "a3", nil) {
		t.Error("programs wait after all have been replaced")
	}
}
