package api

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	apiv1 "myelin/api/v1"
)

func TestListen(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "myelin.sock")
	first, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v", info.Mode(), err)
	}
	if dir, _ := os.Stat(filepath.Dir(socket)); dir.Mode().Perm() != 0o700 {
		t.Errorf("directory has mode %v", dir.Mode())
	}
	if _, err := Listen(socket); err == nil || !strings.Contains(err.Error(), "another agent answers") {
		t.Errorf("second listener: %v", err)
	}
	// What kill -9 leaves.
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	first.Close()
	second, err := Listen(socket)
	if err != nil {
		t.Fatal("stale socket:", err)
	}
	second.Close()
	if err := os.WriteFile(socket, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(socket); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file was taken for a socket: %v", err)
	}
	if _, err := Listen("/" + strings.Repeat("x", maxSocketPath)); err == nil ||
		!strings.Contains(err.Error(), "longer than 107 bytes") {
		t.Errorf("long path: %v", err)
	}
}

// TestListenOnce: of many that start at once on a stale socket, one wins.
func TestListenOnce(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "myelin.sock")
	stale, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close()
	var mu sync.Mutex
	var won []net.Listener
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if l, err := Listen(socket); err == nil {
				mu.Lock()
				defer mu.Unlock()
				won = append(won, l)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Errorf("%d listen", len(won))
	}
	for _, l := range won {
		l.Close()
	}
}

func TestDialNoServer(t *testing.T) {
	conn, err := Dial(filepath.Join(t.TempDir(), "a b%20?.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = apiv1.NewCNIClient(conn).Status(t.Context(), &apiv1.CNIStatusRequest{})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "a b%20?.sock") {
		t.Errorf("got %v", err)
	}
}
