package host

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/endpoint/nettest"
	"myelin/l7/control"
)

// listening is a process that has a proxy's control socket, until it is ended by a signal.
func listening(runDir string) int {
	if _, err := control.Listen(control.Socket(runDir)); err != nil {
		fmt.Println(err)
		return 3
	}
	fmt.Println("listening")
	time.Sleep(time.Hour)
	return 0
}

// ending is a process that ends the proxy, with a second of patience.
func ending(runDir string) int {
	ctx, cancel := context.WithTimeout(context.Background(), proxyPatience/10)
	defer cancel()
	o := Options{RunDir: runDir, Say: func(format string, args ...any) { fmt.Printf(format+"\n", args...) }}
	if err := o.endProxy(ctx); err != nil {
		fmt.Println(err)
		return 3
	}
	return 0
}

// startListening starts a process with the control socket. The channel gets how it ended.
func startListening(t *testing.T, runDir string) (*exec.Cmd, <-chan error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "proxy", runDir)
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

// TestEndProxy: a proxy of the node is ended. One in another PID namespace, where a process of this one may have the
// same number, is waited for.
func TestEndProxy(t *testing.T) {
	nettest.Root(t)
	dir := t.TempDir()
	if err := os.MkdirAll(control.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	var said []string
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	o := Options{RunDir: dir, Say: say}
	if err := o.endProxy(t.Context()); err != nil || len(said) != 0 {
		t.Errorf("without a proxy: %q, %v", said, err)
	}
	cmd, ended := startListening(t, dir)
	if err := o.endProxy(t.Context()); err != nil || len(said) != 1 ||
		said[0] != fmt.Sprintf("ended the proxy, process %d", cmd.Process.Pid) {
		t.Errorf("a process of the node: %q, %v", said, err)
	}
	<-ended
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != unix.SIGTERM {
		t.Errorf("the proxy has ended by %v", cmd.ProcessState)
	}
	if err := o.endProxy(t.Context()); err != nil {
		t.Errorf("a socket that is left: %v", err)
	}
	cmd, ended = startListening(t, dir)
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
