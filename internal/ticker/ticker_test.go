package ticker

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now() // midnight, as synctest has it
		a, b := New(), New()
		time.Sleep(30 * time.Millisecond)
		for i, want := range []time.Duration{100, 200, 300} {
			if <-a.Next(100 * time.Millisecond); time.Since(start) != want*time.Millisecond {
				t.Errorf("tick %d is after %s, want %d ms", i+1, time.Since(start), want)
			}
			time.Sleep(10 * time.Millisecond)
		}
		together := make(chan time.Time)
		go func() { together <- <-b.Next(400 * time.Millisecond) }()
		if at := <-a.Next(200 * time.Millisecond); !at.Equal(<-together) {
			t.Error("ticks of 200 and 400 ms do not fall together")
		}
		<-a.Next(100 * time.Millisecond)
		time.Sleep(time.Second) // ticks are missed
		if <-a.Next(100 * time.Millisecond); time.Since(start) != 1600*time.Millisecond {
			t.Errorf("the tick after a pause is after %s", time.Since(start))
		}
	})
}
