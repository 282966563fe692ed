package main

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"
)

func TestLiveView(t *testing.T) {
	failed := errors.New("failed")
	n := 0
	count := func(context.Context, time.Time) (int, error) {
		n++
		return n, nil
	}
	text := func(n int) string { return map[int]string{1: "one", 2: "two"}[n] + "\n" }
	ended := make(chan error, 1)
	ended <- failed
	for name, c := range map[string]struct {
		format string
		live   liveView[int]
		want   string
		err    error
	}{
		"text": {"", liveView[int]{interval: time.Millisecond, count: 2, next: count, text: text},
			"one\n\ntwo\n\n", nil},
		"json": {"json", liveView[int]{interval: time.Millisecond, count: 2, next: count, text: text}, "1\n2\n", nil},
		"next": {"", liveView[int]{interval: time.Millisecond, text: text,
			next: func(context.Context, time.Time) (int, error) { return 0, failed }}, "", failed},
		"ended": {"", liveView[int]{interval: time.Hour, next: count, text: text, ended: ended}, "", failed},
	} {
		n = 0
		c.live.output = outputOf(t, c.format)
		var out bytes.Buffer
		if err := c.live.run(t.Context(), &out); !errors.Is(err, c.err) || out.String() != c.want {
			t.Errorf("%s: %v, %q; want %v, %q", name, err, &out, c.err, c.want)
		}
	}
	// An interrupted call is no error.
	ctx, cancel := context.WithCancel(t.Context())
	live := liveView[int]{output: &output{}, interval: time.Millisecond, text: text,
		next: func(ctx context.Context, _ time.Time) (int, error) {
			cancel()
			return 0, ctx.Err()
		}}
	if err := live.run(ctx, &bytes.Buffer{}); err != nil {
		t.Errorf("interrupted: %v", err)
	}
}
