package host

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/endpoint/nettest"
	"myelin/internal/daemon"
	"myelin/l7/control"
)

// listening is a process that has a socket of a proxy, until it is ended by a signal: the second one if it serves its
// last connections.
func listening(path string) int {
	draining, signals := strings.Contains(path, "draining"), make(chan os.Signal, 1)
	if draining {
		signal.Notify(signals, unix.SIGTERM)
	}
	if _, err := daemon.Listen(path); err != nil {
		fmt.Println(err)
		return 3
	}
	fmt.Println("listening")
	if draining {
		<-signals
		signal.Reset(unix.SIGTERM)
	}
	time.Sleep(time.Hour)
	return 0
}

// ending is a process that ends proxies, with a second of patience.
func ending(runDir string) int {
	ctx, cancel := context.WithTimeout(context.Background(), proxyPatience/10)
	defer cancel()
	o := Options{RunDir: runDir, Say: func(format string, args ...any) { fmt.Printf(format+"\n", args...) }}
	if err := o.endProxies(ctx); err != nil {
		fmt.Println(err)
		return 3
	}
	return 0
}

// startListening starts a process with a socket. The channel gets how it ended.
func startListening(t *testing.T, path string) (*exec.Cmd, <-chan error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "proxy", path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // an error says that it has ended
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "listening\n" {
		t.Fatalf("%q, %v", line, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return cmd, ended
}

// TestEndProxy: a proxy of the node is ended, and one that serves its last connections. One in another PID namespace,
// where a process of this one may have the same number, is waited for.
func TestEndProxy(t *testing.T) {
	nettest.Root(t)
	dir := t.TempDir()
	if err := os.MkdirAll(control.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	var said []string
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	o := Options{RunDir: dir, Say: say}
	if err := o.endProxies(t.Context()); err != nil || len(said) != 0 {
		t.Errorf("without a proxy: %q, %v", said, err)
	}
	draining, drained := startListening(t, control.DrainSocket(dir, time.Now()))
	cmd, ended := startListening(t, control.Socket(dir))
	want := []string{fmt.Sprintf("ended the proxy, process %d", draining.Process.Pid),
		fmt.Sprintf("ended the proxy, process %d", cmd.Process.Pid)}
	if err := o.endProxies(t.Context()); err != nil || !slices.Equal(said, want) {
		t.Errorf("processes of the node: %q, want %q; %v", said, want, err)
	}
	<-drained
	<-ended
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != unix.SIGTERM {
		t.Errorf("the proxy has ended by %v", cmd.ProcessState)
	}
	if err := o.endProxies(t.Context()); err != nil {
		t.Errorf("a socket that is left: %v", err)
	}
	if err := control.RemoveStale(dir); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(control.Dir(dir), "draining-*")); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	cmd, ended = startListening(t, control.Socket(dir))
	elsewhere := exec.Command("/proc/self/exe", "end-proxy", dir)
	elsewhere.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	text, err := elsewhere.CombinedOutput()
	if err == nil || !strings.Contains(string(text), "wait for the proxy, which runs in a pod") {
		t.Errorf("from another PID namespace: %q, %v", text, err)
	}
	select {
	case <-ended:
		t.Error("the proxy of another PID namespace was ended")
	default:
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	elsewhere = exec.Command("/proc/self/exe", "end-proxy", dir)
	elsewhere.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	if text, err := elsewhere.CombinedOutput(); err != nil {
		t.Errorf("when it has ended: %q, %v", text, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "proxy", "*.new")); len(left) > 0 {
		t.Error("left", left)
	}
}
