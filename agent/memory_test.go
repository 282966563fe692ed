package agent

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// TestUnused: what was made and is not needed counts, collected or not, until it is given back.
func TestUnused(t *testing.T) {
	// Not collected in between, it can't have been given back already.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	debug.FreeOSMemory()
	const large = 2 * giveBackFrom
	before := unused()
	runtime.KeepAlive(make([]byte, large))
	if got := unused(); got < before+large-giveBackFrom/2 {
		t.Errorf("%d bytes are unused after %d were made, %d before", got, large, before)
	}
	debug.FreeOSMemory()
	if got := unused(); got >= giveBackFrom {
		t.Errorf("%d bytes are unused after memory was given back", got)
	}
}
