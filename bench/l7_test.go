package bench

import (
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestListeningFD finds the descriptor of a socket that this process listens with.
func TestListeningFD(t *testing.T) {
	// The process's first thread, which /proc/self is, may be in another network namespace since an earlier test.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const self = "/proc/thread-self"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	fd, err := listeningFD(self, port)
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
	if fd, err := listeningFD(self, port); err == nil {
		t.Errorf("descriptor %d listens at a port that is closed", fd)
	}
}

// TestProcess measures this process. The kernel may count CPU time by ticks (10 ms at 100 Hz), and other work takes its
// share of what passes by the clock: the loop ends by what getrusage(2) says.
func TestProcess(t *testing.T) {
	before, err := processTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	begin := ownTime(t)
	for ownTime(t)-begin < 50*time.Millisecond {
	}
	spent := ownTime(t) - begin
	after, err := processTime(os.Getpid())
	if err != nil || after-before < spent-20*time.Millisecond || after-before > time.Minute {
		t.Errorf("%s of work took %s of CPU time, %v", spent, after-before, err)
	}
	if kib, err := residentKiB(os.Getpid()); err != nil || kib < 1024 {
		t.Errorf("the memory of this process is %d KiB, %v", kib, err)
	}
}

// ownTime is the CPU time of this process, user and system.
func ownTime(t *testing.T) time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
