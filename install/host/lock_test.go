package host

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestAcquireLock(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	here := Paths{RunDir: filepath.Join(dir, "run"), BPFRoot: filepath.Join(dir, "bpf")}
	first, err := AcquireLock(t.Context(), here, 0, log) // without a BPF file system
	if err != nil {
		t.Fatal(err)
	}
	if _, err := AcquireLock(t.Context(), here, 0, log); err == nil || !strings.Contains(err.Error(),
		fmt.Sprintf("another agent (process %d)", os.Getpid())) {
		t.Fatalf("a second agent: %v", err)
	}
	time.AfterFunc(100*time.Millisecond, first)
	second, err := AcquireLock(t.Context(), here, time.Minute, log)
	if err != nil {
		t.Fatalf("after the first one ended: %v", err)
	}
	second()
}

// TestAcquireLockBPFRoot: two agents with different run directories and one BPF file system, which each sees at a place
// of its own.
func TestAcquireLockBPFRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a BPF file system")
	}
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	one, two := filepath.Join(dir, "bpf1"), filepath.Join(dir, "bpf2")
	for _, d := range []string{one, two} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	mount := func(source, target, fs string, flags uintptr) {
		t.Helper()
		if err := unix.Mount(source, target, fs, flags, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
	}
	mount("bpffs", one, "bpf", 0)
	mount(one, two, "", unix.MS_BIND)
	first, err := AcquireLock(t.Context(), Paths{RunDir: filepath.Join(dir, "run1"), BPFRoot: one}, 0, log)
	if err != nil {
		t.Fatal(err)
	}
	other := Paths{RunDir: filepath.Join(dir, "run2"), BPFRoot: two}
	_, err = AcquireLock(t.Context(), other, 0, log)
	if want := fmt.Sprintf("another agent (process %d) has this BPF file system", os.Getpid()); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("a second agent on the BPF file system: %v, want %q", err, want)
	}
	if _, err := os.Stat(other.RunDir); err == nil {
		t.Error("the second agent has made its run directory")
	}
	if err := Clean(t.Context(), Options{RunDir: other.RunDir, BPFRoot: two, Say: t.Logf}); err == nil ||
		!strings.Contains(err.Error(), "an agent runs") {
		t.Errorf("cleanup on the BPF file system of an agent: %v", err)
	}
	first()
	second, err := AcquireLock(t.Context(), other, 0, log)
	if err != nil {
		t.Fatalf("after the first one ended: %v", err)
	}
	second()
}

// TestAcquireLockFull: no room for the lock's file keeps no agent from starting, and none from finding another one.
func TestAcquireLockFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a small file system")
	}
	dir := t.TempDir()
	// Its root is all that it can hold.
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	paths := Paths{RunDir: dir, BPFRoot: filepath.Join(dir, "none")}
	log := slog.New(slog.DiscardHandler)
	first, err := AcquireLock(t.Context(), paths, 0, log)
	if err != nil {
		t.Fatal(err)
	}
	defer first()
	_, err = AcquireLock(t.Context(), paths, 0, log)
	if err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("a second agent: %v", err)
	}
}
