package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
)

// Result is that of one check.
type Result struct {
	// Via is how the packets of the check travelled.
	Via Via
	// Early: they went directly, because the datapath did not know a frontend, or did not see them. That may be because
	// the Service is new.
	Early bool
	Err   error
}

// Frontend is an address that clients of a backend connect to.
type Frontend struct {
	Address  netip.AddrPort
	Protocol uint8 // of the Service, by its IP number
}

// Flow is a connection of a check that is to travel as that of a client of a frontend.
type Flow struct {
	Local, Backend netip.AddrPort // as the socket has them
	Frontend       Frontend
	Port           uint16 // at the frontend's address
}

// Trace is what the datapath did with flows.
type Trace struct {
	// DSR: packets were sent as those of clients, otherwise directly.
	DSR bool
	// Early is that of Result.
	Early bool
	// Replies is the number of packets that came back.
	Replies uint32
}

// Flows sends flows of checks as clients' packets are sent.
type Flows interface {
	// Mark is the SO_MARK of their sockets.
	Mark() uint32
	// DSR is the way of packets that are sent by DSR.
	DSR() Via
	// Open announces a flow before its first packet. Close ends it, after the last one.
	Open(*Flow) error
	Close(*Flow) (Trace, error)
}

// RunAsClient checks a backend once for each of its frontends, as their clients reach it. It stops at the first one
// that fails, and where packets are not sent by DSR, since further checks would be the same. Each takes no longer than
// the check's Timeout, and a quarter more if no packet came back.
func RunAsClient(ctx context.Context, c Check, backend netip.AddrPort, flows Flows, frontends []Frontend) Result {
	if len(frontends) == 0 {
		return Result{Via: Direct, Err: Run(ctx, c, backend)}
	}
	result := Result{Via: Direct}
	for _, f := range frontends {
		t := newTravel(flows, f, cmp.Or(c.Port, f.Address.Port()))
		err := run(ctx, c, backend, t.dial)
		trace, endErr := t.end()
		err = cmp.Or(endErr, err)
		result.Early = result.Early || trace.Early
		switch {
		case trace.DSR && err != nil:
			return Result{Via: flows.DSR(), Err: t.explain(ctx, c, backend, err)}
		case trace.DSR:
			result.Via, result.Err = flows.DSR(), nil
		case result.Via == Direct:
			result.Err = err
		}
		if !trace.DSR && (err != nil || !trace.Early) {
			return result
		}
	}
	return result
}

// travel is the connections of one check for one frontend. gRPC may open several, concurrently.
type travel struct {
	flows    Flows
	frontend Frontend
	port     uint16

	mu    sync.Mutex
	open  map[*Flow]net.Conn // nil before it is connected
	ended bool
	trace Trace
	err   error // of the datapath
}

func newTravel(flows Flows, f Frontend, port uint16) *travel {
	return &travel{flows: flows, frontend: f, port: port, open: map[*Flow]net.Conn{}}
}

// errEnded is the error of connections that are opened after the check.
var errEnded = errors.New("the check has ended")

// begin announces a flow.
func (t *travel) begin(f *Flow) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return errEnded
	}
	if err := t.flows.Open(f); err != nil {
		t.err = cmp.Or(t.err, err)
		return err
	}
	t.open[f] = nil
	return nil
}

// connected notes the connection of a flow, which ends with it.
func (t *travel) connected(f *Flow, conn net.Conn) (net.Conn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil, errors.Join(errEnded, conn.Close())
	}
	t.open[f] = conn
	return &flowConn{conn, func() error { return t.close(f) }}, nil
}

// flowConn ends its flow with itself.
type flowConn struct {
	net.Conn
	end func() error
}

func (c *flowConn) Close() error { return c.end() }

// close closes the connection of a flow, and then the flow. The last packet is part of the flow.
func (t *travel) close(f *Flow) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closeLocked(f)
}

func (t *travel) closeLocked(f *Flow) error {
	conn, ok := t.open[f]
	if !ok {
		return net.ErrClosed
	}
	delete(t.open, f)
	var err error
	if conn != nil {
		err = conn.Close()
	}
	trace, traceErr := t.flows.Close(f)
	t.trace.DSR = t.trace.DSR || trace.DSR
	t.trace.Early = t.trace.Early || trace.Early
	t.trace.Replies += trace.Replies
	t.err = cmp.Or(t.err, traceErr)
	return err
}

// end closes the flows that are still open. Later ones are refused.
func (t *travel) end() (Trace, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	for f := range t.open {
		_ = t.closeLocked(f) // the check is over
	}
	return t.trace, t.err
}

// explain adds to the error of a check by DSR how it travelled, and whether only that is what fails: no packet came
// back, but the backend accepts a direct connection.
func (t *travel) explain(ctx context.Context, c Check, backend netip.AddrPort, err error) error {
	err = fmt.Errorf("%w by %s for %s", err, t.flows.DSR(), t.frontend.Address)
	if t.trace.Replies > 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout/4)
	defer cancel()
	conn, directErr := dialDirect(ctx, c.at(backend))
	if directErr != nil {
		return err
	}
	conn.Close()
	return fmt.Errorf("%w, though %s accepts direct connections: clients' packets, or replies from %s, are lost", err,
		c.at(backend), t.frontend.Address.Addr())
}
