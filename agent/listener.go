package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"myelin/status"
)

// Delays between attempts to listen on an address that is taken.
const (
	listenRetryMin = time.Second
	listenRetryMax = 30 * time.Second
)

// listener serves HTTP on one address, as soon as that can be had.
type listener struct {
	log           *slog.Logger
	name, address string
	handler       http.Handler

	mu      sync.Mutex
	server  *http.Server // nil: does not listen
	err     error        // why not
	retry   time.Duration
	timer   *time.Timer
	stopped bool
}

// start listens, or has it tried again later, with growing delays.
func (l *listener) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	socket, err := net.Listen("tcp", l.address)
	if err != nil {
		l.failed(err)
		return
	}
	if l.err != nil {
		l.log.Info("HTTP is served now", "what", l.name, "address", l.address)
	}
	l.err, l.retry = nil, listenRetryMin
	l.server = &http.Server{
		Handler: l.handler, ReadTimeout: httpTimeout, WriteTimeout: httpTimeout,
		ErrorLog: slog.NewLogLogger(l.log.Handler(), slog.LevelDebug),
	}
	go l.serve(l.server, socket)
}

// failed notes why nothing listens, and plans the next attempt. The caller holds the lock.
func (l *listener) failed(err error) {
	if l.err == nil || l.err.Error() != err.Error() {
		level := slog.LevelError
		if absent(err) {
			level = slog.LevelDebug
		}
		l.log.Log(context.Background(), level, "HTTP is not served, and tried again",
			"what", l.name, "address", l.address, "error", err)
	}
	l.server, l.err = nil, err
	l.timer = time.AfterFunc(l.retry, l.start)
	l.retry = min(2*l.retry, listenRetryMax)
}

func (l *listener) serve(server *http.Server, socket net.Listener) {
	err := server.Serve(socket)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped && !errors.Is(err, http.ErrServerClosed) {
		l.failed(err)
	}
}

func (l *listener) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	if l.timer != nil {
		l.timer.Stop()
	}
	if l.server != nil {
		l.server.Close()
	}
}

func (l *listener) status() status.Listener {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := status.Listener{Name: l.name, Address: l.address}
	if l.err != nil {
		s.Error, s.Absent = l.err.Error(), absent(l.err)
	}
	return s
}

// absent reports whether the node has no such address: one without IPv6 has no ::1.
func absent(err error) bool {
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)
}
