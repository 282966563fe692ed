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
	one := func(at, name string, fails error) replacement {
		return replacement{at, func() error { log = append(log, "swap "+name); return fails },
			func(failed error) error { log = append(log, fmt.Sprint("end ", name, " ", failed)); return failed }}
	}
	var r replacements
	later := func(at, name string, fails error) bool {
		later, err := r.later(one(at, name, fails))
		if err != nil && !errors.Is(err, errForgotten) {
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
	if err := r.forget("b", "x"); !errors.Is(err, errForgotten) {
		t.Errorf("forget: %v, want the error of end", err)
	}
	if err := r.run(); !errors.Is(err, refused) {
		t.Errorf("%v, want the error of c", err)
	}
	want := []string{"end a1 detached", "end b detached", "swap a2", "swap c", "end a2 <nil>", "end c refused"}
	if !slices.Equal(log, want) {
		t.Errorf("%s, want %s", strings.Join(log, ", "), strings.Join(want, ", "))
	}
	if r.waits() || later("a", "a3", nil) {
		t.Error("programs wait after all have been replaced")
	}
}
