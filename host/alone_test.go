package host

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	log := slog.New(slog.DiscardHandler)
	first, err := Alone(t.Context(), dir, 0, log)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Alone(t.Context(), dir, 0, log); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("another agent (process %d)", os.Getpid())) {
		t.Fatalf("a second agent: %v", err)
	}
	time.AfterFunc(100*time.Millisecond, first)
	second, err := Alone(t.Context(), dir, time.Minute, log)
	if err != nil {
		t.Fatalf("after the first one ended: %v", err)
	}
	second()
}
