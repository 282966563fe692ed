package ipsec

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"myelin/encryption/options"
)

// The file is followed: what can't be used is an error, and leaves the keys in use as they are.
func TestTurn(t *testing.T) {
	dir, now := t.TempDir(), time.Unix(1000, 0)
	r, err := openRing(filepath.Join(dir, "ipsec", "keys"), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	e := &IPsec{ring: r, changed: make(chan struct{}), params: Params{
		Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now },
		Options: options.Options{KeyDir: dir, KeyFile: "secret"},
	}}
	for i, step := range []struct {
		text    string
		after   time.Duration
		ids     []int
		next    time.Duration // from the step on; 0: none
		refused string
		changed bool
	}{
		{"", 0, nil, 0, "no such file", false},
		{"x", 0, nil, 0, "it has 1 fields", false},
		{testKey, 0, []int{3}, 0, "", true},
		{testKey, time.Second, []int{3}, 0, "", false},
		{strings.Replace(testKey, "13 128", "14 128", 1), 0, []int{3}, 0, "another key has the identifier 3", false},
		{strings.Replace(testKey, "3+", "4", 1), 0, []int{4, 3}, time.Minute, "", true},
		{"x", 20 * time.Second, []int{4, 3}, 40 * time.Second, "it has 1 fields", false},
		{strings.Replace(testKey, "3+", "4", 1), 40*time.Second - 1, []int{4, 3}, 1, "", false},
		{strings.Replace(testKey, "3+", "4", 1), 1, []int{4}, 0, "", true},
	} {
		now = now.Add(step.after)
		if step.text != "" {
			if err := os.WriteFile(e.params.Options.KeyPath(), []byte(step.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		before := e.changed
		next, err := e.turn(true)
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if list, _ := e.secrets(); !reflect.DeepEqual(ids(list), step.ids) {
			t.Errorf("step %d: keys %v, want %v", i, ids(list), step.ids)
		}
		var want time.Time
		if step.next != 0 {
			want = now.Add(step.next)
		}
		if !next.Equal(want) || (before != e.changed) != step.changed {
			t.Errorf("step %d: next %v, want %v; changed: %v", i, next, want, before != e.changed)
		}
		err = e.keyError()
		if (err == nil) != (step.refused == "") || err != nil && !strings.Contains(err.Error(), step.refused) {
			t.Errorf("step %d: %v, want %q", i, err, step.refused)
		}
	}
}
