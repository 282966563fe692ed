package bench

import (
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestListeningFD finds the descriptor of a socket that this process listens with.
func TestListeningFD(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	fd, err := listeningFD(os.Getpid(), port)
	if err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	if at := name.(*unix.SockaddrInet4).Port; at != port {
		t.Errorf("descriptor %d listens at %d, want %d", fd, at, port)
	}
	l.Close()
	if fd, err := listeningFD(os.Getpid(), port); err == nil {
		t.Errorf("descriptor %d listens at a port that is closed", fd)
	}
}

// TestProcess measures this process.
func TestProcess(t *testing.T) {
	before, err := processTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); time.Since(begin) < 20*time.Millisecond; {
	}
	after, err := processTime(os.Getpid())
	if err != nil || after-before < time.Millisecond || after-before > time.Minute {
		t.Errorf("20 ms of work took %s of CPU time, %v", after-before, err)
	}
	if kib, err := residentKiB(os.Getpid()); err != nil || kib < 1024 {
		t.Errorf("the memory of this process is %d KiB, %v", kib, err)
	}
}
