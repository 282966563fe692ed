// Package api holds both ends of the agent's unix socket. What is spoken over
// it is in package api/v1, generated from the .proto files there.
package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// DefaultSocket is where the agent listens unless it is told otherwise.
const DefaultSocket = "/run/myelin/myelin.sock"

// ObserverSocket is the name of the socket of Hubble's API in the run directory.
const ObserverSocket = "hubble.sock"

// maxSocketPath is what fits sun_path with its final zero, unix(7).
const maxSocketPath = 107

// Dial returns a client of the agent behind socket. It does not connect: the
// first call does, and fails with codes.Unavailable when no server listens. The
// file's mode is the only access control.
func Dial(socket string) (*grpc.ClientConn, error) {
	path, err := filepath.Abs(socket)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", socket, err)
	}
	// passthrough with an own dialer, because a unix: target would have to be
	// escaped as a URL.
	conn, err := grpc.NewClient("passthrough:///agent",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dialUnix(path)),
		grpc.WithDisableServiceConfig(),
		grpc.WithAuthority("localhost"))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", socket, err)
	}
	return conn, nil
}

func dialUnix(path string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
}

// Listen listens on socket with mode 0600 and makes its directory (0700). A
// socket that a dead agent left is replaced; one that a server answers on is
// not, and the error says so.
func Listen(socket string) (net.Listener, error) {
	if len(socket) > maxSocketPath {
		return nil, fmt.Errorf("listen on %s: path is longer than %d bytes", socket, maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	unlock, err := lockFile(socket + ".lock")
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	defer unlock()
	if err := removeStale(socket); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	// Before this, too, only root can connect: connecting needs write
	// permission, which no usual umask leaves to others.
	if err := os.Chmod(socket, 0o600); err != nil {
		listener.Close()
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	return listener, nil
}

// lockFile keeps two agents that start at once from removing each other's
// socket between the look and the bind.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

func removeStale(socket string) error {
	info, err := os.Lstat(socket)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("the file is there and is no socket")
	}
	conn, err := net.Dial("unix", socket)
	if err == nil {
		conn.Close()
		return errors.New("another agent answers there")
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	return os.Remove(socket)
}
