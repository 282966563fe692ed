package apiserver

import (
	"testing"
	"time"
)

// patience is how long what should happen may take.
const patience = 30 * time.Second

// Eventually waits until f says nothing, at most 30 s.
func Eventually(t testing.TB, what string, f func() string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		said := f()
		if said == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s, after %s: %s", what, patience, said)
		}
	}
}
