package connectivity

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"myelin/internal/capture"
)

const (
	// captureReady is the line that a capture writes when it has begun.
	captureReady = "ready"
	// captureTime bounds a capture.
	captureTime = time.Minute
	// captureSlots is how many frames of each device may wait to be read.
	captureSlots = 2048
	// captureTail is for how long frames are read after the end.
	captureTail = 200 * time.Millisecond
)

// captured is what a capture of devices has seen.
type captured struct {
	// Frames is how many there were, in both directions, and Lost how many more there was no room for.
	Frames int `json:"frames"`
	Lost   int `json:"lost,omitempty"`
	// Seen is how many frames had each text in their first 1,900 octets. The empty text is in none.
	Seen []int `json:"seen"`
}

// Capture captures devices of the thread's network namespace until it reads a line from in, or its end, for a minute at
// most. It writes a line to out when it has begun, and what it has seen as JSON. It needs CAP_NET_RAW.
func Capture(ctx context.Context, in io.Reader, out io.Writer, devices, texts []string) error {
	ctx, cancel := context.WithTimeout(ctx, captureTime)
	defer cancel()
	all := make([]captured, len(devices))
	var rings []*capture.Ring
	defer func() {
		for _, ring := range rings {
			ring.Close()
		}
	}()
	var g errgroup.Group
	for i, device := range devices {
		ring, err := capture.Open(device, captureSlots)
		if err != nil {
			return err
		}
		rings = append(rings, ring)
		all[i].Seen = make([]int, len(texts))
		g.Go(func() error { return ring.Each(func(s capture.Slot) { all[i].add(s.Frame(), texts) }) })
	}
	if _, err := fmt.Fprintln(out, captureReady); err != nil {
		return err
	}
	go func() {
		_, _ = bufio.NewReader(in).ReadString('\n') // an error ends it, too
		cancel()
	}()
	<-ctx.Done()
	time.Sleep(captureTail)
	sum, err := total(all, rings, len(texts), &g)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(sum)
}

// total ends captures and adds up what they have seen.
func total(all []captured, rings []*capture.Ring, texts int, g *errgroup.Group) (sum captured, err error) {
	sum.Seen = make([]int, texts)
	for _, ring := range rings {
		_, lost, failed := ring.Stats()
		sum.Lost += lost
		err = errors.Join(err, failed, ring.Close())
	}
	err = errors.Join(err, g.Wait())
	for _, c := range all {
		sum.Frames += c.Frames
		for i, n := range c.Seen {
			sum.Seen[i] += n
		}
	}
	return sum, err
}

func (c *captured) add(frame []byte, texts []string) {
	c.Frames++
	for i, text := range texts {
		if text != "" && bytes.Contains(frame, []byte(text)) {
			c.Seen[i]++
		}
	}
}

// watch is what a capture of both nodes must see, and what it must not.
type watch struct {
	secret string // in what is encrypted
	canary string // in what is not: it shows that the capture works; empty: nothing is
}

// problem says what is wrong with what was captured; empty: nothing.
func (w *watch) problem(c captured) string {
	switch {
	case c.Seen[0] > 0:
		return fmt.Sprintf("%d of %d captured frames carry in plain text what should be encrypted", c.Seen[0],
			c.Frames)
	case c.Lost > 0:
		return fmt.Sprintf("%d frames were not captured, as there is too much other traffic: this shows nothing",
			c.Lost)
	case c.Frames == 0 || w.canary != "" && c.Seen[1] == 0:
		return fmt.Sprintf("none of %d captured frames is of the test, not even one that is not encrypted: this shows "+
			"nothing", c.Frames)
	}
	return ""
}

// watch captures the devices between the nodes until end is called, which returns what is wrong with what they carried.
func (r *runner) watch(ctx context.Context, w *watch) (end func() []Failure, err error) {
	ctx, cancel := context.WithTimeout(ctx, captureTime+execTime)
	var sessions []*captureSession
	for _, host := range []*pod{r.facts.nearHost, r.facts.farHost} {
		s, err := r.startCapture(ctx, host, w)
		if err != nil {
			cancel()
			return nil, fmt.Errorf("capture on node %s: %w", host.node, err)
		}
		sessions = append(sessions, s)
	}
	return func() (failures []Failure) {
		defer cancel()
		for _, s := range sessions {
			s.stdin.Close()
		}
		for _, s := range sessions {
			node := s.host.node
			problem := ""
			if captured, err := s.wait(); err != nil {
				problem = "the capture failed: " + err.Error()
			} else {
				problem = w.problem(captured)
			}
			if problem != "" {
				failures = append(failures, Failure{From: "node " + node, To: "node " + r.facts.otherNode(node),
					Problem: problem, Explanation: r.explainEncryption(ctx, node)})
			}
		}
		return failures
	}, nil
}

// errEnded is the end of a capture that did not fail.
var errEnded = errors.New("it ended")

// captureSession is a capture in the pod of a node's network. It ends when stdin is closed.
type captureSession struct {
	host  *pod
	stdin *io.PipeWriter
	out   *bufio.Reader
	done  chan error
}

// startCapture returns when the capture has begun.
func (r *runner) startCapture(ctx context.Context, host *pod, w *watch) (*captureSession, error) {
	command := []string{"/myelin", "connectivity", "capture", "--text", w.secret, "--text", w.canary}
	for _, device := range r.facts.encryption.wires[host.node] {
		command = append(command, "--device", device)
	}
	in, stdin := io.Pipe()
	output, stdout := io.Pipe()
	s := &captureSession{host: host, stdin: stdin, out: bufio.NewReader(output), done: make(chan error, 1)}
	go func() {
		err := r.ExecIn(ctx, host.namespace, host.name, in, stdout, command...)
		in.Close()
		stdout.Close()
		s.done <- err
	}()
	if line, err := s.out.ReadString('\n'); line != captureReady+"\n" {
		stdin.Close()
		output.Close() // what else it writes is not read
		return nil, fmt.Errorf("it says %q, want %q: %w", line, captureReady, cmp.Or(<-s.done, err, errEnded))
	}
	return s, nil
}

// wait returns what was captured.
func (s *captureSession) wait() (c captured, err error) {
	err = json.NewDecoder(s.out).Decode(&c)
	if err == nil && len(c.Seen) != 2 {
		err = fmt.Errorf("it has looked for %d texts, want 2", len(c.Seen))
	}
	return c, cmp.Or(<-s.done, err)
}
