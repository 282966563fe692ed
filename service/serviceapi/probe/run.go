package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// userAgent is what HTTP and gRPC servers see.
const userAgent = "myelin-health-check"

// dial connects to a backend.
type dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)

// Run checks a backend once and directly, over a connection of its own. It returns nil if the backend is healthy, and
// otherwise an error whose text is the same when the same happens again. It takes no longer than the check's Timeout.
func Run(ctx context.Context, c Check, backend netip.AddrPort) error {
	return run(ctx, c, backend, dialDirect)
}

func run(ctx context.Context, c Check, backend netip.AddrPort, dial dial) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	at := c.at(backend)
	var err error
	switch c.Kind {
	case TCP:
		err = checkTCP(ctx, at, dial)
	case HTTP:
		err = checkHTTP(ctx, c, at, dial)
	case GRPC:
		err = checkGRPC(ctx, c, at, dial)
	default:
		err = fmt.Errorf("no such kind of check: %s", c.Kind)
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("no answer within %s", c.Timeout)
	}
	return err
}

// dialer is without MPTCP and keep-alives, because connections are short.
func dialer() *net.Dialer {
	d := &net.Dialer{KeepAlive: -1}
	d.SetMultipathTCP(false)
	return d
}

func dialDirect(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return dialer().DialContext(ctx, "tcp", to.String())
}

func checkTCP(ctx context.Context, at netip.AddrPort, dial dial) error {
	conn, err := dial(ctx, at)
	if err != nil {
		return plain(err)
	}
	return conn.Close()
}

func checkHTTP(ctx context.Context, c Check, at netip.AddrPort, dial dial) error {
	path := c.Path
	if path == "" {
		path = "/"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+path, nil)
	if err != nil {
		return err
	}
	req.Host = c.Host
	req.Header.Set("User-Agent", userAgent)
	transport := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, at) }}
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(req) // which follows no redirects
	if err != nil {
		return plain(err)
	}
	answer.Body.Close()
	if answer.StatusCode < 200 || answer.StatusCode > 399 {
		return fmt.Errorf("HTTP status %d", answer.StatusCode)
	}
	return nil
}

func checkGRPC(ctx context.Context, c Check, at netip.AddrPort, dial dial) error {
	conn, err := grpc.NewClient("passthrough:///"+at.String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithUserAgent(userAgent),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := dial(ctx, at)
			return conn, plain(err)
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx,
		&grpc_health_v1.HealthCheckRequest{Service: c.Service})
	if err != nil {
		s := status.Convert(err)
		return fmt.Errorf("gRPC %s: %s", s.Code(), s.Message())
	}
	if answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("gRPC health is %s", answer.GetStatus())
	}
	return nil
}

// plain omits the addresses of an error. The client's port differs each time.
func plain(err error) error {
	var op *net.OpError
	if !errors.As(err, &op) {
		return err
	}
	var call *os.SyscallError
	if errors.As(op.Err, &call) {
		return fmt.Errorf("%s: %w", call.Syscall, call.Err)
	}
	return fmt.Errorf("%s: %w", op.Op, op.Err)
}

// pause waits, and reports whether ctx has not ended by then.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
