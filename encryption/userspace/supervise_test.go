package userspace

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// supervising runs a supervisor that knows the device of the tests. end ends it.
func supervising(t *testing.T, runDir string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Supervise(ctx, SuperviseParams{RunDir: runDir, Devices: []string{name},
			Log: slog.New(slog.DiscardHandler)})
	}()
	c := Client{RunDir: runDir}
	for deadline := time.Now().Add(10 * time.Second); !c.Supervised(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the supervisor does not answer")
		}
	}
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestSupervisor: a device that has a process gets no second one, what is not the agent's is refused, and a supervisor
// that has ended is as one that was never there.
func TestSupervisor(t *testing.T) {
	t.Parallel()
	c, _ := serving(t, "v1")
	if err := c.Start(name, 1420); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a supervisor: %v", err)
	}
	end := supervising(t, c.RunDir)
	before, err := c.About(name)
	if err == nil {
		err = c.Start(name, 1420)
	}
	if err != nil {
		t.Fatal(err)
	}
	if after, err := c.About(name); err != nil || after.Instance() != before.Instance() {
		t.Errorf("the process was %+v and is %+v, %v", before, after, err)
	}
	for _, row := range []struct {
		device string
		mtu    int
		want   string
	}{
		{"eth0", 1420, `"eth0" is no device of Myelin's`},
		{name, 0, "MTU 0"},
		{name, 1 << 20, "MTU 1048576"},
		{name + "\nmode=fast", 1420, `unknown key "mode"`},
	} {
		if err := c.Start(row.device, row.mtu); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%q, MTU %d: got %v, want %s", row.device, row.mtu, err, row.want)
		}
	}
	end()
	if err := c.Start(name, 1420); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("when the supervisor has ended: %v", err)
	}
}
