package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// contact is when the server was last heard of, by any request. It is safe for
// concurrent use.
type contact struct {
	mu      sync.Mutex
	last    time.Time // of the last sign of life; zero: never
	problem string    // of the last request; empty if it went well
	since   time.Time // since when there is a problem
	failed  uint64    // requests
	said    bool      // the log has a problem
	changed chan struct{}
}

func newContact() *contact { return &contact{changed: make(chan struct{}, 1)} }

// heard notes a sign of life.
func (c *contact) heard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = time.Now()
	if c.problem != "" {
		c.problem, c.since = "", time.Time{}
		c.tellLocked()
	}
}

// missed notes a request that got no answer.
func (c *contact) missed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed++
	if c.problem == "" {
		c.since = time.Now()
	}
	if c.problem != err.Error() {
		c.problem = err.Error()
		c.tellLocked()
	}
}

func (c *contact) tellLocked() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// tell calls f after each change, until ctx ends.
func (c *contact) tell(ctx context.Context, f func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
			f()
		}
	}
}

// watched is a way to the server that keeps count of what comes back.
type watched struct {
	next    http.RoundTripper
	contact *contact
	timeout time.Duration
}

// RoundTrip implements http.RoundTripper. A server that doesn't begin to answer
// in time has not answered; the answer itself may take for ever, as watches do.
func (w *watched) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	late := time.AfterFunc(w.timeout, func() { cancel(fmt.Errorf("no answer in %s", w.timeout)) })
	res, err := w.next.RoundTrip(req.WithContext(ctx))
	if !late.Stop() && err != nil && req.Context().Err() == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel(nil)
		if req.Context().Err() == nil { // else it was given up here
			w.contact.missed(plain(err))
		}
		return nil, err
	}
	if res.StatusCode >= http.StatusInternalServerError {
		w.contact.missed(fmt.Errorf("the server answers %s", res.Status))
	} else {
		w.contact.heard()
	}
	res.Body = &body{ReadCloser: res.Body, contact: w.contact, cancel: cancel,
		healthy: res.StatusCode < http.StatusInternalServerError}
	return res, nil
}

// WrappedRoundTripper is for client-go, which looks for what is inside.
func (w *watched) WrappedRoundTripper() http.RoundTripper { return w.next }

// plain is an error without the request, which is one of many.
func plain(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// body notes that an answer goes on.
type body struct {
	io.ReadCloser
	contact *contact
	cancel  context.CancelCauseFunc
	healthy bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 && b.healthy {
		b.contact.heard()
	}
	return n, err
}

// Close implements io.Closer.
func (b *body) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}
