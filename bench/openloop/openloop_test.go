package openloop

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// here is the test's own network namespace.
type here struct{}

func (here) Do(fn func() error) error { return fn() }

// TestRun opens connections on loopback: all succeed, and those to a port that is closed all fail.
func TestRun(t *testing.T) {
	needsRoot(t)
	loopback := netip.MustParseAddr("127.0.0.1")
	s, err := Listen(here{}, netip.AddrPortFrom(loopback, 0), false)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Clients: []Client{{here{}, loopback}, {here{}, netip.MustParseAddr("127.0.0.2")},
		{here{}, netip.Addr{}}},
		To: s.addr, Rate: 500, Duration: 500 * time.Millisecond}
	r, err := Run(t.Context(), c)
	t.Log(r)
	if err != nil || r.Failed > 0 || r.Opened < 100 || r.Opened > 250 || r.Slowest == 0 {
		t.Errorf("%v, %v: want none of about 250 to fail", r, err)
	}
	for end := time.Now().Add(5 * time.Second); s.Accepted() < r.Opened &&
		time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if s.Accepted() != r.Opened {
		t.Errorf("%d of %d connections were accepted", s.Accepted(), r.Opened)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	r, err = Run(t.Context(), c)
	if err != nil || r.Failed != r.Opened || r.Reasons[unix.ECONNREFUSED.Error()] != r.Failed {
		t.Errorf("%v, %v: want all to be refused", r, err)
	}
}

// TestServerCloses has the server close first.
func TestServerCloses(t *testing.T) {
	needsRoot(t)
	s, err := Listen(here{}, netip.MustParseAddrPort("127.0.0.1:0"), true)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Clients: []Client{{Place: here{}}}, To: s.addr, Rate: 500, Duration: 500 * time.Millisecond,
		ServerCloses: true}
	began := time.Now()
	r, err := Run(t.Context(), c)
	if took := time.Since(began); err != nil || r.Failed > 0 || r.Opened < 100 || s.Accepted() != r.Opened ||
		took > 2*time.Second {
		t.Errorf("%v, %v, %d accepted in %s: want all to be closed by the server", r, err, s.Accepted(), took)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestTimeout opens more connections than a listener has room for which accepts none.
func TestTimeout(t *testing.T) {
	needsRoot(t)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0))
	}
	if err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(name.(*unix.SockaddrInet4).Port))
	c := Config{Clients: []Client{{Place: here{}}}, To: to, Rate: 100, Duration: 200 * time.Millisecond,
		Timeout: 100 * time.Millisecond}
	r, err := Run(t.Context(), c)
	t.Log(r)
	if err != nil || r.Failed == 0 || r.Failed == r.Opened || r.Reasons[unix.ETIMEDOUT.Error()] != r.Failed {
		t.Errorf("%v, %v: want the first ones to succeed and the others to time out", r, err)
	}
}

// TestConfig refuses to do nothing.
func TestConfig(t *testing.T) {
	if _, err := Run(t.Context(), Config{}); err == nil {
		t.Error("a run without clients succeeds")
	}
}

func needsRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to enter network namespaces")
	}
}
