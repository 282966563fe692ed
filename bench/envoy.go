package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"myelin/bpf"
)

//go:embed envoy.yaml
var envoyConfig []byte

// envoyListener is where it listens by itself; the datapath redirects connections to any port.
const envoyListener = 15001

// replace has Envoy take the connections that are redirected to the proxy of the lab. It runs in the proxy's network
// namespace, with as many workers as there are processors.
func (l *l7Lab) replace(ctx context.Context, envoy, dir string) error {
	config := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(config, envoyConfig, 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", l.proxy), envoy, "-c", config,
		"--disable-hot-restart", "--log-level", "warning")
	cmd.Stderr = os.Stderr
	stop, err := daemon(cmd)
	if err != nil {
		return fmt.Errorf("start Envoy: %w", err)
	}
	l.stops = append(l.stops, stop)
	l.proxy = cmd.Process.Pid
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := l.redirectTo(l.proxy)
		if err == nil {
			return favour(l.proxy)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("redirect to Envoy: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// redirectTo makes a process's listening socket the one that the datapath selects.
func (l *l7Lab) redirectTo(pid int) error {
	theirs, err := listeningFD(pid, envoyListener)
	if err != nil {
		return err
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(process)
	fd, err := unix.PidfdGetfd(process, theirs, 0)
	if err != nil {
		return fmt.Errorf("get the socket of process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	sockets, err := ebpf.LoadPinnedMap(filepath.Join(l.node.BPFRoot(), "myelin", "maps", "proxy_sockets"), nil)
	if err != nil {
		return err
	}
	defer sockets.Close()
	return sockets.Put(uint32(bpf.DatapathProxySocketPROXY_LISTENER), uint64(fd))
}

// listeningFD is the descriptor, in a process, of the socket that listens at a port.
func listeningFD(pid, port int) (int, error) {
	inode := ""
	for _, file := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, file))
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(text)) {
			const listen = "0A"
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == listen && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				inode = f[9]
			}
		}
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && to == "socket:["+inode+"]" {
			fd := 0
			_, err := fmt.Sscan(e.Name(), &fd)
			return fd, err
		}
	}
	return 0, errors.New("the process does not listen yet")
}
