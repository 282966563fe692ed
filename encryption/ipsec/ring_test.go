package ipsec

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func ids(list []held) (got []int) {
	for _, h := range list {
		got = append(got, h.ID)
	}
	return got
}

// A rotation: both keys are accepted for a while, also by an agent that has started again.
func TestRing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ipsec", "keys")
	begin := time.Unix(1000, 0)
	open := func() *ring {
		r, err := openRing(path, 5*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	take := func(r *ring, s *secret, at time.Time, changed bool, refused string) {
		t.Helper()
		got, err := r.take(s, at)
		if got != changed || (err != nil) != (refused != "") || err != nil && !strings.Contains(err.Error(), refused) {
			t.Errorf("take %d: %v, %v", s.ID, got, err)
		}
	}
	r := open()
	take(r, testSecret(t, "3", "13"), begin, true, "")
	take(r, testSecret(t, "3", "13"), begin, false, "")
	take(r, testSecret(t, "3", "14"), begin, false, "another key has the identifier 3 already")
	take(r, testSecret(t, "4", "14"), begin, true, "")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the keys: %v, %v", info, err)
	}
	r = open()
	take(r, testSecret(t, "4", "14"), begin.Add(time.Minute), false, "")
	take(r, testSecret(t, "3", "15"), begin.Add(time.Minute), false, "identifier 3 already")
	if got := ids(r.list()); !reflect.DeepEqual(got, []int{4, 3}) {
		t.Errorf("in the middle of the rotation: %v", got)
	}
	for published, want := range map[int]int{3: 3, 4: 4, 0: 4, 5: 4} {
		if got := outbound(r.list(), published).ID; got != want {
			t.Errorf("key %d is sent to a node that has published %d", got, published)
		}
	}
	next, err := r.expire(begin.Add(5*time.Minute - 1))
	if err != nil || !next.Equal(begin.Add(5*time.Minute)) || len(r.held) != 2 {
		t.Errorf("before the end: %v, %v, %v", next, err, ids(r.held))
	}
	if next, err = r.expire(begin.Add(5 * time.Minute)); err != nil || !next.IsZero() {
		t.Errorf("at the end: %v, %v", next, err)
	}
	if got := ids(open().list()); !reflect.DeepEqual(got, []int{4}) {
		t.Errorf("after the rotation: %v", got)
	}
	take(r, testSecret(t, "3", "15"), begin.Add(time.Hour), true, "") // the identifier is free again
	take(r, testSecret(t, "4", "14"), begin.Add(time.Hour), true, "") // and back, while it is still held
	if got := ids(r.list()); !reflect.DeepEqual(got, []int{4, 3}) || !r.current().Until.IsZero() {
		t.Errorf("after the way back: %v, until %v", got, r.current().Until)
	}
}

// The error for a file that has no keys does not have a part of it, which may be one.
func TestRingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openRing(path, 0); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a file that has no keys: %v", err)
	}
	if outbound(nil, 3) != nil {
		t.Error("a key out of none")
	}
}
