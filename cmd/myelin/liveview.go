package main

import (
	"context"
	"io"
	"time"
)

// liveView shows a view after each interval. On a terminal it is drawn in place, elsewhere as a block of lines, and in
// a structured format as an object.
type liveView[V any] struct {
	output   *output
	interval time.Duration
	count    int // ends after so many views; 0: never
	// next computes the view of a tick.
	next func(ctx context.Context, at time.Time) (V, error)
	text func(V) string
	// ended receives when there is nothing more to show, with the error of run; nil: never.
	ended <-chan error
}

// run returns nil when ctx ends.
func (l *liveView[V]) run(ctx context.Context, w io.Writer) error {
	var s *screen // nil: no terminal
	if !l.output.structured() {
		var err error
		if s, err = openScreen(w); err != nil {
			return err
		}
		defer s.close()
	}
	if s != nil {
		if err := s.draw("counting for " + l.interval.String()); err != nil {
			return err
		}
	}
	tick := time.NewTicker(l.interval)
	defer tick.Stop()
	var view V
	for n := 0; l.count == 0 || n < l.count; {
		select {
		case <-ctx.Done():
			return nil
		case err := <-l.ended:
			return err
		case <-s.changed():
		case at := <-tick.C:
			next, err := l.next(ctx, at)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			view = next
			n++
		}
		if n == 0 {
			continue // there is no view yet
		}
		if err := l.draw(w, s, view); err != nil {
			return err
		}
	}
	return nil
}

func (l *liveView[V]) draw(w io.Writer, s *screen, view V) error {
	if l.output.structured() {
		return l.output.writeItem(w, view)
	}
	text := l.text(view)
	if s != nil {
		return s.draw(text)
	}
	_, err := io.WriteString(w, text+"\n")
	return err
}
