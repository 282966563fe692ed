package userspace

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"myelin/internal/daemon"
)

const (
	// maxRequest bounds a request to the supervisor, in bytes.
	maxRequest = 4096
	// maxMTU is the largest MTU of a device, in bytes.
	maxMTU = 65535
)

// supervisorSocket is where a supervisor gets requests.
func supervisorSocket(runDir string) string {
	return filepath.Join(runDir, "wireguard", "supervisor.sock")
}

// SuperviseParams are what a supervisor works with.
type SuperviseParams struct {
	RunDir    string // of the agent
	LogFormat string // of the processes
	Devices   []string
	Log       *slog.Logger
}

// Start starts the process of a device: this program's command wireguard.
func Start(runDir, device string, mtu int, logFormat string) (*daemon.Child, error) {
	return daemon.Start("the process of "+device, func() {}, "wireguard", "--run-dir", runDir, "--device", device,
		"--mtu", strconv.Itoa(mtu), "--log-format", logFormat)
}

// Supervise starts processes of devices as agents request them, until the context ends. In a container of its own it
// keeps them from ending with the agent's container, which a container runtime ends as a whole.
func Supervise(ctx context.Context, p SuperviseParams) error {
	path := supervisorSocket(p.RunDir)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make the directory of the supervisor's socket: %w", err)
	}
	l, err := daemon.Listen(path)
	if err != nil {
		return fmt.Errorf("open the supervisor's socket: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	p.Log.Info("WireGuard is started on request", "socket", path)
	for {
		c, err := l.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept requests: %w", err)
		}
		// One at a time: two agents that follow one another may request the same process.
		p.answer(ctx, c)
	}
}

func (p *SuperviseParams) answer(ctx context.Context, c net.Conn) {
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return
	}
	request, ok := readRequest(c)
	if !ok { // a client that only looks
		return
	}
	device, mtu, err := parseRequest(request)
	if err == nil {
		err = p.start(ctx, device, mtu)
	}
	if err != nil {
		p.Log.Warn("WireGuard was not started", "error", err)
		fmt.Fprintf(c, "problem=%s\n", oneLine(err.Error()))
	}
	fmt.Fprint(c, "errno=0\n\n")
}

// readRequest reads up to the empty line. Not ok: the client has gone before.
func readRequest(c net.Conn) (lines []line, ok bool) {
	in := bufio.NewScanner(io.LimitReader(c, maxRequest))
	for in.Scan() {
		if in.Text() == "" {
			return lines, true
		}
		key, value, _ := strings.Cut(in.Text(), "=")
		lines = append(lines, line{key, value})
	}
	return nil, false
}

func parseRequest(lines []line) (device string, mtu int, err error) {
	for _, l := range lines {
		switch l.key {
		case "start":
			device = l.value
		case "mtu":
			mtu, err = strconv.Atoi(l.value)
		default:
			err = fmt.Errorf("unknown key %q", l.key)
		}
		if err != nil {
			return "", 0, fmt.Errorf("read the request: %w", err)
		}
	}
	if mtu < 1 || mtu > maxMTU {
		return "", 0, fmt.Errorf("read the request: MTU %d", mtu)
	}
	return device, mtu, nil
}

// start returns when the process of a device answers.
func (p *SuperviseParams) start(ctx context.Context, device string, mtu int) error {
	if !slices.Contains(p.Devices, device) {
		return fmt.Errorf("%q is no device of Myelin's", device)
	}
	client := Client{RunDir: p.RunDir}
	answers := func() bool {
		_, err := client.About(device)
		return err == nil
	}
	if answers() {
		return nil
	}
	child, err := Start(p.RunDir, device, mtu, p.LogFormat)
	if err != nil {
		return err
	}
	p.Log.Info("WireGuard was started in a process", "device", device, "pid", child.PID)
	ctx, cancel := context.WithTimeout(ctx, answerTime*3/4) // the client waits for the answer
	defer cancel()
	return child.Await(ctx, answers)
}

// Start has the supervisor of the run directory start the process of a device, and returns when it answers. The error
// wraps fs.ErrNotExist if there is no supervisor.
func (c *Client) Start(device string, mtu int) error {
	conn, err := c.dialSupervisor()
	if err != nil {
		return err
	}
	defer conn.Close()
	lines, err := exchange(conn, fmt.Appendf(nil, "start=%s\nmtu=%d\n\n", device, mtu))
	if err != nil {
		return fmt.Errorf("have the supervisor start the process of %s: %w", device, err)
	}
	for _, l := range lines {
		if l.key == "problem" {
			return fmt.Errorf("the supervisor could not start the process of %s: %s", device, l.value)
		}
	}
	return nil
}

// Supervised reports whether there is a supervisor.
func (c *Client) Supervised() bool {
	conn, err := c.dialSupervisor()
	return err == nil && conn.Close() == nil
}

func (c *Client) dialSupervisor() (net.Conn, error) {
	conn, err := dial(supervisorSocket(c.RunDir))
	if err != nil {
		return nil, fmt.Errorf("connect to the supervisor of WireGuard's processes: %w", err)
	}
	return conn, nil
}
