package userspace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"myelin/internal/daemon"
)

// answerTime bounds how long the process may take for one request.
const answerTime = 10 * time.Second

// Client configures the processes of a run directory, as wgctrl's client does the kernel's devices.
type Client struct{ RunDir string }

// About is what a process says of itself.
type About struct {
	PID     int // as this process sees it; 0: it is in another container
	Version string
	Started time.Time
	Memory  uint64 // that it took when it was asked, bytes
}

// Instance tells processes of one device apart: each starts without a key and peers.
func (a *About) Instance() string { return strconv.FormatInt(a.Started.UnixNano(), 10) }

// dial connects to the process of a device. The error wraps fs.ErrNotExist if there is none.
func (c *Client) dial(name string) (net.Conn, error) {
	conn, err := dial(socketOf(c.RunDir, name))
	if err != nil {
		return nil, fmt.Errorf("connect to the process of %s: %w", name, err)
	}
	return conn, nil
}

// dial connects to a socket. The error wraps fs.ErrNotExist if no process listens.
func dial(path string) (net.Conn, error) {
	conn, err := net.DialTimeout("unix", path, answerTime)
	if errors.Is(err, unix.ECONNREFUSED) {
		err = fs.ErrNotExist
	}
	return conn, err
}

// About returns what the process of a device says of itself. The error wraps fs.ErrNotExist if there is none.
func (c *Client) About(name string) (about About, err error) {
	conn, about, err := c.ask(name)
	if err == nil {
		err = conn.Close()
	}
	return about, err
}

// ask returns what the process of a device says of itself, and the connection, which lasts as long as the process.
func (c *Client) ask(name string) (conn net.Conn, about About, err error) {
	if conn, err = c.dial(name); err != nil {
		return nil, about, err
	}
	lines, err := exchange(conn, []byte(aboutRequest))
	if err == nil {
		about, err = parseAbout(lines)
	}
	if err == nil {
		about.PID, err = daemon.Process(socketOf(c.RunDir, name))
	}
	if err != nil {
		return nil, about, errors.Join(fmt.Errorf("read the state of the process of %s: %w", name, err), conn.Close())
	}
	return conn, about, nil
}

// Watch returns the process of a device, and a channel that is closed when it ends or the done channel is closed.
func (c *Client) Watch(name string, done <-chan struct{}) (about About, ended <-chan struct{}, err error) {
	conn, about, err := c.ask(name)
	if err != nil {
		return about, nil, err
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(io.Discard, conn) // an error is an end, too
	}()
	go func() {
		select {
		case <-done:
		case <-over:
		}
		conn.Close()
	}()
	return about, over, nil
}

// Device returns a device's key, port and peers. The error wraps fs.ErrNotExist if it has no process.
func (c *Client) Device(name string) (*wgtypes.Device, error) {
	lines, err := c.request(name, []byte("get=1\n\n"))
	if err != nil {
		return nil, fmt.Errorf("read device %s: %w", name, err)
	}
	d, err := parseDevice(lines)
	if err != nil {
		return nil, fmt.Errorf("read device %s: %w", name, err)
	}
	d.Name, d.Type = name, wgtypes.Userspace
	return d, nil
}

// ConfigureDevice changes a device.
func (c *Client) ConfigureDevice(name string, cfg wgtypes.Config) error {
	if _, err := c.request(name, encode(cfg)); err != nil {
		return fmt.Errorf("configure device %s: %w", name, err)
	}
	return nil
}

// Close does nothing: each request has a connection of its own.
func (*Client) Close() error { return nil }

func (c *Client) request(name string, text []byte) ([]line, error) {
	conn, err := c.dial(name)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return exchange(conn, text)
}

// line is a line of an answer.
type line struct{ key, value string }

// exchange sends a request and reads its answer up to the empty line.
func exchange(conn net.Conn, text []byte) (lines []line, err error) {
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(text); err != nil {
		return nil, err
	}
	in := bufio.NewScanner(conn)
	for in.Scan() && in.Text() != "" {
		key, value, _ := strings.Cut(in.Text(), "=")
		lines = append(lines, line{key, value})
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	if len(lines) == 0 || lines[len(lines)-1].key != "errno" {
		return nil, io.ErrUnexpectedEOF
	}
	switch code := lines[len(lines)-1].value; code {
	case "0":
		return lines[:len(lines)-1], conn.SetDeadline(time.Time{})
	default:
		n, err := strconv.Atoi(code)
		if err != nil {
			return nil, fmt.Errorf("errno %q", code)
		}
		return nil, os.NewSyscallError("WireGuard", unix.Errno(max(n, -n)))
	}
}

// encode is a change as text.
func encode(c wgtypes.Config) []byte {
	var b bytes.Buffer
	b.WriteString("set=1\n")
	if c.PrivateKey != nil {
		fmt.Fprintf(&b, "private_key=%x\n", c.PrivateKey[:])
	}
	if c.ListenPort != nil {
		fmt.Fprintf(&b, "listen_port=%d\n", *c.ListenPort)
	}
	if c.ReplacePeers {
		b.WriteString("replace_peers=true\n")
	}
	for i := range c.Peers {
		encodePeer(&b, &c.Peers[i])
	}
	b.WriteByte('\n')
	return b.Bytes()
}

func encodePeer(b *bytes.Buffer, p *wgtypes.PeerConfig) {
	fmt.Fprintf(b, "public_key=%x\n", p.PublicKey[:])
	if p.UpdateOnly {
		b.WriteString("update_only=true\n")
	}
	if p.Remove {
		b.WriteString("remove=true\n")
		return
	}
	if p.Endpoint != nil {
		fmt.Fprintf(b, "endpoint=%s\n", p.Endpoint)
	}
	if p.ReplaceAllowedIPs {
		b.WriteString("replace_allowed_ips=true\n")
	}
	for _, a := range p.AllowedIPs {
		fmt.Fprintf(b, "allowed_ip=%s\n", a.String())
	}
	// Last: it may send the first packet.
	if p.PersistentKeepaliveInterval != nil {
		fmt.Fprintf(b, "persistent_keepalive_interval=%d\n", int(p.PersistentKeepaliveInterval.Seconds()))
	}
}
