package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"

	"myelin/hubble/query"
)

// How batches are sent.
const (
	batchInterval = 250 * time.Millisecond
	dropInterval  = 100 * time.Millisecond // drops do not wait for the next batch
	idleBatch     = 5 * time.Second        // an empty batch, so that both ends see that the other is there
	writeTimeout  = 20 * time.Second       // a browser that takes nothing for so long has gone
	history       = 1000                   // flows that a stream begins with
	maxText       = 200
)

// streams are the collectors of open streams, which details are asked from.
type streams struct {
	mu   sync.Mutex
	last uint64
	all  map[uint64]*collector
}

func (s *streams) open(c *collector) (id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[uint64]*collector{}
	}
	s.last++
	s.all[s.last] = c
	return s.last
}

func (s *streams) close(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
}

func (s *streams) get(id uint64) *collector {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id]
}

// parameters are filters of the page's URL, by their names in Hubble.
func parameters() []string {
	return []string{"namespace", "pod", "from-pod", "to-pod", "service", "from-service", "to-service", "label",
		"from-label", "to-label", "verdict", "protocol", "port", "ip", "from-ip", "to-ip", "node-name", "type"}
}

// request makes a request of the filters of a URL. Values of one filter are separated by commas.
func request(values url.Values, now time.Time) (req *observerpb.GetFlowsRequest, text string, err error) {
	if err := unknownField(values, append(parameters(), "text")...); err != nil {
		return nil, "", err
	}
	var filters query.Filters
	for _, name := range parameters() {
		for _, list := range values[name] {
			for value := range strings.SplitSeq(list, ",") {
				if value = strings.TrimSpace(value); value == "" {
					continue
				}
				if err := filters.Add(name, value); err != nil {
					return nil, "", errors.New(strings.TrimPrefix(err.Error(), "--"))
				}
			}
		}
	}
	if text = values.Get("text"); len(text) > maxText {
		return nil, "", fmt.Errorf("text: %d bytes, want %d at most", len(text), maxText)
	}
	req, err = query.Range{Last: history, Follow: true}.Request(&filters, now)
	return req, strings.ToLower(strings.TrimSpace(text)), err
}

// flows streams batches, an object a line, the first with the number of the stream.
func (s *Server) flows(w http.ResponseWriter, r *http.Request) {
	req, text, err := request(r.URL.Query(), time.Now())
	if err != nil {
		s.refuse(w, http.StatusBadRequest, err)
		return
	}
	if s.open.Add(1) > maxStreams {
		s.open.Add(-1)
		s.refuse(w, http.StatusServiceUnavailable, fmt.Errorf("%d pages are open already", maxStreams))
		return
	}
	defer s.open.Add(-1)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	c := newCollector(text, time.Now())
	id := s.streams.open(c)
	defer s.streams.close(id)
	ended := make(chan error, 1)
	go func() { ended <- s.receive(ctx, req, c) }()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	out := &lines{to: w, control: http.NewResponseController(w)}
	out.write(map[string]any{"stream": strconv.FormatUint(id, 10), "server": s.Target})
	s.send(ctx, out, c, ended)
}

// receive reads the observer's stream.
func (s *Server) receive(ctx context.Context, req *observerpb.GetFlowsRequest, c *collector) error {
	stream, err := s.Observer.GetFlows(ctx, req)
	for err == nil {
		var res *observerpb.GetFlowsResponse
		if res, err = stream.Recv(); err == nil {
			c.add(res)
		}
	}
	if errors.Is(err, io.EOF) {
		return errors.New(s.Target + " ended the stream")
	}
	return s.ObserverError(err)
}

// send writes batches until the observer's stream ends, or the browser goes.
func (s *Server) send(ctx context.Context, out *lines, c *collector, ended <-chan error) {
	tick := time.NewTicker(batchInterval)
	defer tick.Stop()
	last := time.Now()
	for out.err == nil {
		select {
		case <-ctx.Done():
			return
		case err := <-ended:
			b := c.take(time.Now())
			if err != nil {
				b.Error = err.Error()
			}
			out.write(b)
			return
		case <-c.dropped:
			time.Sleep(dropInterval) // others come with it
		case <-tick.C:
		}
		now := time.Now()
		if b := c.take(now); !b.empty() || now.Sub(last) >= idleBatch {
			last = now
			out.write(b)
			tick.Reset(batchInterval)
		}
	}
}

func (b *batch) empty() bool {
	return b.Flows == 0 && len(b.Lost) == 0 && len(b.Nodes) == 0 && b.EdgesLeftOut == 0
}

// lines writes JSON, an object a line, each within writeTimeout.
type lines struct {
	to      io.Writer
	control *http.ResponseController
	err     error
}

func (l *lines) write(v any) {
	if l.err != nil {
		return
	}
	data, err := json.Marshal(v)
	if err == nil {
		err = l.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	}
	if err == nil {
		_, err = l.to.Write(slices.Concat(data, []byte("\n")))
	}
	if err == nil {
		err = l.control.Flush()
	}
	l.err = err
}
