package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fxamacker/cbor/v2"
	"golang.org/x/sys/unix"

	"myelin/internal/daemon"
	"myelin/l7/config"
	"myelin/l7/dns"
)

// Client talks to the proxy of a run directory, if one runs.
type Client struct {
	http http.Client
}

// NewClient returns a client. It connects with the first request.
func NewClient(runDir string) *Client { return newClient(Socket(runDir)) }

func newClient(socket string) *Client {
	c := &Client{}
	c.http.Transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		IdleConnTimeout: time.Minute,
	}
	return c
}

// Configure replaces the proxy's configuration, which is in force when it returns.
func (c *Client) Configure(ctx context.Context, data []byte) error {
	return c.do(ctx, http.MethodPut, "/v1/config", bytes.NewReader(data), nil)
}

// Encode is a configuration as Configure and the file have it.
func Encode(c *config.Config) ([]byte, error) { return json.Marshal(c) }

// Status asks the proxy for its status.
func (c *Client) Status(ctx context.Context) (s Status, err error) {
	return s, c.do(ctx, http.MethodGet, "/v1/status", nil, &s)
}

// Names asks for all names that are known.
func (c *Client) Names(ctx context.Context) (rows []dns.Row, err error) {
	return rows, c.do(ctx, http.MethodGet, "/v1/names", nil, &rows)
}

// Records reads records from a Seq on; it waits for one for up to 20 seconds.
func (c *Client) Records(ctx context.Context, from uint64) (r Records, err error) {
	url := fmt.Sprintf("http://proxy/v1/records?from=%d", from)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return r, err
	}
	request.Header.Set("Accept", cborType)
	return r, c.send(request, &r)
}

// Add hands records over that another proxy has made.
func (c *Client) Add(ctx context.Context, list []Record) error {
	data, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("encode records: %w", err)
	}
	return c.do(ctx, http.MethodPost, "/v1/records", bytes.NewReader(data), nil)
}

// Drain makes the proxy accept no connections any more.
func (c *Client) Drain(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/v1/drain", nil, nil)
}

func (c *Client) do(ctx context.Context, method, path string, body io.Reader, into any) error {
	r, err := http.NewRequestWithContext(ctx, method, "http://proxy"+path, body)
	if err != nil {
		return err
	}
	return c.send(r, into)
}

func (c *Client) send(r *http.Request, into any) error {
	answer, err := c.http.Do(r)
	if err != nil {
		return fmt.Errorf("ask the proxy: %w", errors.Unwrap(err))
	}
	defer answer.Body.Close()
	if answer.StatusCode >= http.StatusBadRequest {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 4096)) // what there is of it
		return fmt.Errorf("the proxy refuses: %s", strings.TrimSpace(string(text)))
	}
	if into == nil {
		return nil
	}
	if answer.Header.Get("Content-Type") == cborType {
		err = cbor.NewDecoder(answer.Body).Decode(into)
	} else {
		err = json.NewDecoder(answer.Body).Decode(into)
	}
	if err != nil {
		return fmt.Errorf("read the proxy's answer: %w", err)
	}
	return nil
}

// Process returns the process that serves the control socket, as this process sees it: 0 if it is in a PID namespace
// that this one does not have, such as that of another container.
func Process(runDir string) (int, error) { return daemon.Process(Socket(runDir)) }

// Processes returns all proxies of a run directory, as Process does: the one that serves the control socket, and those
// that serve their last connections.
func Processes(runDir string) (list []int) {
	for _, path := range append(drainSockets(runDir), Socket(runDir)) {
		if pid, err := daemon.Process(path); err == nil && !slices.Contains(list, pid) {
			list = append(list, pid)
		}
	}
	return list
}

// RemoveStale removes the sockets of proxies that were killed while they served their last connections.
func RemoveStale(runDir string) error {
	var errs []error
	for _, path := range drainSockets(runDir) {
		if _, err := daemon.Process(path); errors.Is(err, unix.ECONNREFUSED) {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

// Namespace returns a descriptor of the network namespace of the proxy that runs. The error wraps fs.ErrNotExist or
// ECONNREFUSED if none does.
func Namespace(runDir string) (*os.File, error) {
	conn, err := net.DialTimeout("unix", NamespaceSocket(runDir), time.Second)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return nil, err
	}
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(b, oob)
	if err != nil {
		return nil, fmt.Errorf("read the proxy's network namespace: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("read the proxy's network namespace: %d messages, %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("read the proxy's network namespace: %d descriptors, %w", len(fds), err)
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "proxy network namespace"), nil
}
