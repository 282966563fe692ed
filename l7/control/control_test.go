package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/cluster"
	"myelin/internal/daemon"
	"myelin/l7/config"
	"myelin/l7/dns"
	"myelin/policy"
)

// configured is a handler that takes configurations, unless they have no rules.
type configured struct {
	Handler
	got chan *config.Config
}

func (c *configured) Configure(now *config.Config) error {
	if len(now.Rules) == 0 {
		return errors.New("there are no rules")
	}
	c.got <- now
	return nil
}

func (c *configured) Names() []dns.Row {
	return []dns.Row{{Name: "a.example", Slot: 3, Pod: cluster.Key{Namespace: "n", Name: "p"}}}
}

// runDirWith is a run directory with the control socket of a handler.
func runDirWith(t *testing.T, h Handler) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := daemon.Listen(Socket(dir))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, h) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestConfigure: the proxy gets the configuration as the file has it, and what it says against one gets back.
func TestConfigure(t *testing.T) {
	t.Parallel()
	h := &configured{got: make(chan *config.Config, 1)}
	dir := runDirWith(t, h)
	c := NewClient(dir)
	want := &config.Config{Rules: []config.Rule{{Number: 7, Parts: []config.Part{{L7: policy.L7{
		ServerNames: []string{"a.example"}}}}}}, Records: true, HTTP: config.HTTP{IdleTimeout: time.Minute},
		Secrets: []config.Secret{{SecretRef: policy.SecretRef{Namespace: "n", Name: "s"},
			Data: map[string][]byte{"tls.key": {0, 1, 0xff}}}}}
	data, err := Encode(want)
	if err == nil {
		err = c.Configure(t.Context(), data)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := <-h.got; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for text, want := range map[string]string{"{}": "the proxy refuses: there are no rules", "{": "unexpected EOF"} {
		if err := c.Configure(t.Context(), []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	names, err := c.Names(t.Context())
	if err != nil || !reflect.DeepEqual(names, h.Names()) {
		t.Errorf("names %v, %v", names, err)
	}
	if info, err := os.Stat(Socket(dir)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	if _, err := NewClient(t.TempDir()).Status(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a proxy: %v", err)
	}
}

// TestProcesses: the process is found by the control socket and by those of proxies that have handed over, and those
// that nothing listens on are removed.
func TestProcesses(t *testing.T) {
	t.Parallel()
	dir := runDirWith(t, &configured{})
	stale, err := daemon.Listen(DrainSocket(dir, time.Unix(1, 0)))
	if err != nil {
		t.Fatal(err)
	}
	serving, err := daemon.Listen(DrainSocket(dir, time.Unix(2, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer serving.Close()
	if err := stale.Close(); err != nil {
		t.Fatal(err)
	}
	if list := Processes(dir); !slices.Equal(list, []int{os.Getpid()}) {
		t.Errorf("processes %v, want %d", list, os.Getpid())
	}
	if err := RemoveStale(dir); err != nil {
		t.Error(err)
	}
	if left := drainSockets(dir); !slices.Equal(left, []string{DrainSocket(dir, time.Unix(2, 0))}) {
		t.Errorf("left are %q", left)
	}
	if list := Processes(t.TempDir()); len(list) > 0 {
		t.Errorf("processes %v in an empty directory", list)
	}
	a, b := Status{PID: 1, Started: time.Unix(1, 0)}, Status{PID: 1, Started: time.Unix(1, 0).UTC()}
	if b.Version = "v2"; !a.Same(&b) {
		t.Error("the same process counts as another one")
	}
	if b.Started = b.Started.Add(1); a.Same(&b) {
		t.Error("processes with the same PID in two containers count as one")
	}
}

// TestNamespace: clients get a descriptor of the namespace, until nothing listens any more.
func TestNamespace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Namespace(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a proxy: %v", err)
	}
	if err := os.Mkdir(Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := daemon.Listen(NamespaceSocket(dir))
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		ServeNamespace(l, own)
	}()
	for i := range 3 {
		got, err := Namespace(dir)
		if err != nil {
			t.Fatal(err)
		}
		var a, b unix.Stat_t
		err = errors.Join(unix.Fstat(int(got.Fd()), &a), unix.Fstat(int(own.Fd()), &b))
		if err != nil || a.Ino != b.Ino || a.Dev != b.Dev {
			t.Errorf("client %d: %s", i, fmt.Sprint(a.Ino, b.Ino, err))
		}
		if flags, err := unix.FcntlInt(got.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("the descriptor is inherited: flags %d, %v", flags, err)
		}
		got.Close()
	}
	l.Close()
	<-done
	if _, err := Namespace(dir); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("when the proxy has ended: %v", err)
	}
}
