// Package nettest runs tests in a network namespace of their own, so that the
// host side of pod links never shows up in the machine's, and makes more
// namespaces for pods. Everything vanishes with the test process, however it
// ends.
package nettest

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const marker = "MYELIN_NETTEST"

// Main runs the tests in a child process with network and mount namespaces of
// its own, and returns the exit code. Without root it runs them right here,
// where Root skips.
func Main(m *testing.M) int {
	if os.Getuid() != 0 {
		return m.Run()
	}
	if os.Getenv(marker) != "" {
		if err := releaseOthers("/run/netns"); err != nil {
			fmt.Fprintln(os.Stderr, "release the network namespaces of others:", err)
			return 1
		}
		return m.Run()
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), marker+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Unshareflags, not Cloneflags: with them Go also makes the mounts private.
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:    syscall.SIGKILL,
	}
	// Pdeathsig is sent when the thread that forked ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "run tests in a network namespace:", err)
		return 1
	}
	return 0
}

// releaseOthers detaches this process's private copies of the mounts in a directory of named network namespaces. A copy
// keeps a namespace with its links for as long as these tests take, after another test, or another process, has removed
// it.
func releaseOthers(dir string) error {
	names, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		err := unix.Unmount(filepath.Join(dir, name.Name()), unix.MNT_DETACH)
		// not mounted, or removed meanwhile
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%s: %w", name.Name(), err)
		}
	}
	return nil
}

// Root skips the test if it does not run as root.
func Root(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
}

// NewNS makes a network namespace and returns its path. Remove it with
// RemoveNS, or leave it to the end of the test.
func NewNS(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	made := make(chan error)
	go func() { made <- makeNS(path) }()
	if err := <-made; err != nil {
		t.Fatalf("make network namespace %s: %v", path, err)
	}
	t.Cleanup(func() { RemoveNS(t, path) })
	return path
}

func makeNS(path string) error {
	runtime.LockOSThread()
	own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open own namespace: %w", err)
	}
	defer unix.Close(own)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	err = unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	if back := unix.Setns(own, unix.CLONE_NEWNET); back != nil {
		// The thread stays locked and dies with this goroutine.
		return errors.Join(err, fmt.Errorf("return to own namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

// RemoveNS ends a namespace that NewNS made; again is no error.
func RemoveNS(t testing.TB, path string) {
	t.Helper()
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		t.Errorf("unmount network namespace %s: %v", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("remove network namespace: %v", err)
	}
}

// Log returns a logger into the test's output, shown when the test fails.
func Log(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Quiet returns a logger into nothing, for what may log after a test has ended.
func Quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }
