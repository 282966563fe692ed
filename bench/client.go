package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Client connects to what the lines of in say, and writes a line for each when it is done. It runs as a process of its
// own in the namespace and the control group of a path's client.
//
//	connect ADDRESS     tries until a server sends something; answers with the monotonic time in ns
//	load ADDRESS RATE   connects RATE times a second until the next line, whatever it is; the answer is a clientLoad
//	http CONFIG         sends requests as a httpload.Config says; the answer is a httpload.Report
//	idle ADDRESS N      opens N connections, has a request answered on each, and keeps them; answers with N
//	close               closes the connections of idle; answers with 0
//	serve ADDRESS       serves HTTP requests there from now on; answers with the address
func Client(in io.Reader, out io.Writer) error {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(in); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	var h httpClient
	for line := range lines {
		if answer, ok, err := h.do(line); ok {
			if err == nil {
				err = json.NewEncoder(out).Encode(answer)
			}
			if err != nil {
				return err
			}
			continue
		}
		var verb, address string
		var rate int
		if n, err := fmt.Sscan(line, &verb, &address, &rate); n < 2 {
			return fmt.Errorf("command %q: %w", line, err)
		}
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("command %q: %w", line, err)
		}
		switch {
		case verb == "connect":
			for request(to) != nil {
			}
			_, err = fmt.Fprintln(out, monotonic())
		case verb == "load" && rate > 0:
			err = json.NewEncoder(out).Encode(load(to, rate, lines))
		default:
			err = fmt.Errorf("command %q: connect ADDRESS or load ADDRESS RATE", line)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// clientLoad is what came of connecting again and again.
type clientLoad struct {
	Requests, Failed int
	// First is what the first one failed of.
	First   string
	Seconds float64
}

// inFlight is how many requests wait at a time at most: with more to do, the load falls short, which shows in its rate.
const inFlight = 256

func load(to netip.AddrPort, rate int, stop <-chan string) (l clientLoad) {
	var mu sync.Mutex
	var all sync.WaitGroup
	room := make(chan struct{}, inFlight)
	begin := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for running := true; running; {
		for due := int(time.Since(begin).Seconds() * float64(rate)); l.Requests < due; l.Requests++ {
			room <- struct{}{}
			all.Go(func() {
				defer func() { <-room }()
				if err := request(to); err != nil {
					mu.Lock()
					defer mu.Unlock()
					if l.Failed++; l.First == "" {
						l.First = err.Error()
					}
				}
			})
		}
		select {
		case <-stop:
			running = false
		case <-tick.C:
		}
	}
	all.Wait()
	l.Seconds = time.Since(begin).Seconds()
	return l
}

// request connects, and waits for the byte that servers send.
func request(to netip.AddrPort) error {
	c, err := net.DialTimeout("tcp", to.String(), 2*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	// no TIME_WAIT, which would use ports up
	if err := errors.Join(c.(*net.TCPConn).SetLinger(0), c.SetDeadline(time.Now().Add(2*time.Second))); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

// monotonic is a clock that all processes share, in ns.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // can't fail: the clock exists, and so does t
	return t.Nano()
}

// client is a process that runs Client.
type client struct {
	in   io.WriteCloser
	out  *bufio.Reader
	stop func()
	cmd  *exec.Cmd
}

// startClient starts this program again in a path. It dies with this one.
func startClient(ctx context.Context, path Path) (*client, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return startCommand(netperf{}.command(ctx, path.Client, self, "-client"))
}

func startCommand(cmd *exec.Cmd) (*client, error) {
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stop, err := daemon(cmd)
	return &client{in, bufio.NewReader(out), stop, cmd}, err
}

func (c *client) say(format string, args ...any) error {
	_, err := fmt.Fprintf(c.in, format+"\n", args...)
	return err
}

func (c *client) answer() (string, error) {
	line, err := c.out.ReadString('\n')
	return strings.TrimSpace(line), err
}

// serveByte sends a byte to whoever connects, until it is closed.
func serveByte(netns string, at netip.AddrPort) (l net.Listener, err error) {
	err = inNetns(netns, func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte{1}) // the client sees the error
			c.Close()
		}
	}()
	return l, nil
}
