package userspace

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"myelin/internal/daemon"
)

const name = "wg-test"

// serving is a client of a device without a TUN device, in this process. end ends it.
func serving(t *testing.T, version string) (c *Client, end func()) {
	t.Helper()
	c = &Client{RunDir: t.TempDir()}
	dev := device.NewDevice(tuntest.NewChannelTUN().TUN(), conn.NewDefaultBind(),
		&device.Logger{Verbosef: device.DiscardLogf, Errorf: device.DiscardLogf})
	t.Cleanup(dev.Close)
	if err := dev.Up(); err != nil {
		t.Fatal(err)
	}
	path := socketOf(c.RunDir, name)
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := daemon.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{device: dev, version: version, started: time.Unix(1, 2)}
	go s.serve(l)
	end = func() { l.Close() }
	t.Cleanup(end)
	return c, end
}

func key(t *testing.T) wgtypes.Key {
	t.Helper()
	k, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func network(t *testing.T, text string) net.IPNet {
	t.Helper()
	_, n, err := net.ParseCIDR(text)
	if err != nil {
		t.Fatal(err)
	}
	return *n
}

// TestConfigure: what the client sets is what it reads, and a change leaves alone what it does not name.
func TestConfigure(t *testing.T) {
	t.Parallel()
	c, _ := serving(t, "v1")
	private, peer, other := key(t), key(t).PublicKey(), key(t).PublicKey()
	keepalive := 25 * time.Second
	first := wgtypes.PeerConfig{PublicKey: peer, Endpoint: &net.UDPAddr{IP: net.ParseIP("2001:db8::1"), Port: 51871},
		PersistentKeepaliveInterval: &keepalive,
		AllowedIPs:                  []net.IPNet{network(t, "10.0.2.0/24"), network(t, "fd00:2::/64")}}
	err := c.ConfigureDevice(name, wgtypes.Config{PrivateKey: &private,
		Peers: []wgtypes.PeerConfig{first, {PublicKey: other}}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := c.Device(name)
	if err != nil {
		t.Fatal(err)
	}
	if d.Name != name || d.Type != wgtypes.Userspace || d.PrivateKey != private || d.ListenPort == 0 ||
		d.PublicKey != private.PublicKey() || len(d.Peers) != 2 {
		t.Errorf("got %+v", d)
	}
	err = c.ConfigureDevice(name, wgtypes.Config{Peers: []wgtypes.PeerConfig{
		{PublicKey: other, Remove: true, UpdateOnly: true},
		{PublicKey: peer, UpdateOnly: true, AllowedIPs: []net.IPNet{network(t, "10.9.0.0/16")}},
	}})
	if err == nil {
		d, err = c.Device(name)
	}
	if err != nil || len(d.Peers) != 1 {
		t.Fatalf("got %+v, %v", d, err)
	}
	got := d.Peers[0]
	if got.PublicKey != peer || got.Endpoint.String() != "[2001:db8::1]:51871" || !got.LastHandshakeTime.IsZero() ||
		got.PersistentKeepaliveInterval != keepalive || len(got.AllowedIPs) != 3 {
		t.Errorf("got %+v", got)
	}
	first.ReplaceAllowedIPs = true
	if err = c.ConfigureDevice(name, wgtypes.Config{Peers: []wgtypes.PeerConfig{first}}); err == nil {
		d, err = c.Device(name)
	}
	if err != nil || len(d.Peers[0].AllowedIPs) != 2 {
		t.Errorf("got %+v, %v", d, err)
	}
}

// TestPortInUse: a port that another program has is an error that says so.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	c, _ := serving(t, "v1")
	taken, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.LocalAddr().(*net.UDPAddr).Port
	if err := c.ConfigureDevice(name, wgtypes.Config{ListenPort: &port}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("got %v, want EADDRINUSE", err)
	}
}

// TestNoProcess: without a process the errors are those of a kernel without the device.
func TestNoProcess(t *testing.T) {
	t.Parallel()
	c := &Client{RunDir: t.TempDir()}
	if _, err := c.Device(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a socket: %v", err)
	}
	c, end := serving(t, "v1")
	end()
	if _, err := c.Device(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("with a socket that nothing listens on: %v", err)
	}
}

// TestWatch: a process tells its version, and the channel is closed when the client has seen enough.
func TestWatch(t *testing.T) {
	t.Parallel()
	c, _ := serving(t, "v1\nerrno=5")
	done := make(chan struct{})
	about, ended, err := c.Watch(name, done)
	if err != nil {
		t.Fatal(err)
	}
	if about.PID != os.Getpid() || about.Version != "v1 errno=5" || about.Instance() != "1000000002" ||
		about.Memory < 1<<20 {
		t.Errorf("got %+v", about)
	}
	select {
	case <-ended:
		t.Error("ended before it did")
	case <-time.After(50 * time.Millisecond):
	}
	close(done)
	<-ended
}
