package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"myelin/bench/httpload"
)

// httpClient does what lines of Client say about HTTP.
type httpClient struct {
	end func() // of idle connections
}

// do does what a line says; ok is false if it is not about HTTP.
func (h *httpClient) do(line string) (answer any, ok bool, err error) {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "http":
		var c httpload.Config
		if err := json.Unmarshal([]byte(rest), &c); err != nil {
			return nil, true, fmt.Errorf("command %q: %w", line, err)
		}
		answer, err = httpload.Run(c)
	case "idle":
		var address string
		var n int
		if _, err := fmt.Sscan(rest, &address, &n); err != nil {
			return nil, true, fmt.Errorf("command %q: %w", line, err)
		}
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil, true, fmt.Errorf("command %q: %w", line, err)
		}
		h.end, err = httpload.Idle(to, l7Path, n)
		return n, true, err
	case "close":
		if h.end == nil {
			return nil, true, errors.New("close: no connections are idle")
		}
		h.end()
		h.end = nil
		return 0, true, nil
	case "serve":
		l, err := net.Listen("tcp", rest)
		if err != nil {
			return nil, true, err
		}
		go func() {
			fmt.Fprintln(os.Stderr, "myelin-bench: serve:", httpload.Serve(l))
		}()
		return rest, true, nil
	default:
		return nil, false, nil
	}
	return answer, true, err
}

// ask sends a line, and reads the answer into a value.
func (c *client) ask(into any, format string, args ...any) error {
	if err := c.say(format, args...); err != nil {
		return err
	}
	line, err := c.answer()
	if err != nil {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
	}
	return json.Unmarshal([]byte(line), into)
}

// run makes requests.
func (c *client) run(config httpload.Config) (r httpload.Report, err error) {
	line, err := json.Marshal(config)
	if err != nil {
		return r, err
	}
	return r, c.ask(&r, "http %s", line)
}

// startOn starts a client on one processor, before other work of the machine.
func startOn(ctx context.Context, netns string, processor int) (*client, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := netperf{}.command(ctx, Place{Netns: netns}, "taskset", "-c", fmt.Sprint(processor), self, "-client")
	return startCommand(cmd)
}
