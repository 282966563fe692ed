package labtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"myelin/encryption/userspace"
	"myelin/status"
)

// TestEncryptionStream compares a TCP stream between pods of two nodes, encrypted by processes, with one between two
// namespaces that have nothing but a tunnel of such processes, over the same fabric. They are measured in turns.
//
//	┌─ node1 ──┐     ┌─ node2 ──┐      ┌─ bare1 ────┐   ┌─ bare2 ────┐
//	│ a1 → wg0 ┼─────┼ wg0 → a2 │      │ TCP → bare0┼───┼bare0 → TCP │
//	└──────────┘     └──────────┘      └────────────┘   └────────────┘
func TestEncryptionStream(t *testing.T) {
	if encryptionState() == status.OK {
		t.Skip("the kernel has WireGuard")
	}
	c := up(t, setup{mode: encryptionModes(wireGuard())[0]})
	c.encrypted()
	one, two := c.bareTunnel()
	var ratios []float64
	for range 11 {
		bare, err := streamRate(t.Context(), one, two, 4)
		check(t, err)
		pods, err := streamRate(t.Context(), c.end("a1"), c.end("a2"), 4)
		check(t, err)
		t.Logf("pods %.0f Mbit/s, bare %.0f Mbit/s: %.3f", pods/1e6, bare/1e6, pods/bare)
		ratios = append(ratios, pods/bare)
	}
	var devices []struct{ MemoryBytes uint64 }
	c.jsonCLI(&devices, "node1", "encrypt", "device")
	if len(devices) != 1 || devices[0].MemoryBytes == 0 || devices[0].MemoryBytes > userspace.MemoryLimit {
		t.Errorf("the process takes %+v bytes, want one, and at most %d", devices, userspace.MemoryLimit)
	}
	t.Logf("the process takes %+v", devices)
	slices.Sort(ratios)
	record(t, result{"wireguard/userspace_stream", ratios[len(ratios)/2], "ratio"})
}

// streamRate is how many bits a second a TCP connection carries, over one and a half seconds.
func streamRate(ctx context.Context, from, to end, family int) (float64, error) {
	const begin, span = 300 * time.Millisecond, 1200 * time.Millisecond
	client, server, err := connect(ctx, from, to, netip.AddrPort{}, at(to.addr(family), 0))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	defer server.Close()
	sent := make(chan error, 1)
	go func() {
		block := make([]byte, 256<<10)
		for {
			if _, err := client.Write(block); err != nil {
				sent <- err
				return
			}
		}
	}()
	read := func(until time.Time) (n int64, err error) {
		if err := server.SetReadDeadline(until); err != nil {
			return 0, err
		}
		n, err = io.Copy(io.Discard, server)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		return n, err
	}
	start := time.Now().Add(begin)
	if _, err := read(start); err != nil {
		return 0, err
	}
	n, err := read(start.Add(span))
	if err != nil {
		return 0, err
	}
	server.Close()
	<-sent
	return float64(n) * 8 / span.Seconds(), nil
}

// bareTunnel makes two namespaces with a tunnel between them, as the nodes' processes make one, over the nodes' fabric.
func (c *cluster) bareTunnel() (one, two end) {
	c.t.Helper()
	ends := [2]end{}
	keys := [2]wgtypes.Key{}
	for i := range ends {
		s, err := (&runtimeOf{lab: c.Name()}).create(90 + i)
		check(c.t, err)
		s.addrs = []netip.Addr{netip.AddrFrom4([4]byte{10, 99, 0, byte(1 + i)})}
		ends[i] = s.end()
		keys[i], err = wgtypes.GeneratePrivateKey()
		check(c.t, err)
	}
	names := [2]string{ends[0].Name(), ends[1].Name()}
	for i := range ends {
		c.shell("ip -n %s link add wire type veth peer name bare%d netns %s", names[i], i, c.fabric())
		c.shell("ip -n %s link set bare%d master fabric up", c.fabric(), i)
		c.shell("ip -n %s addr add 192.0.2.%d/24 dev wire && ip -n %s link set wire up", names[i], 1+i, names[i])
		dir := c.t.TempDir()
		cmd := exec.Command(filepath.Join(binDir(), "myelin"), "wireguard", "--run-dir", dir, "--device", "bare0")
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // as agents start it: the kernel may schedule by session
		check(c.t, ends[i].Do(cmd.Start))
		c.t.Cleanup(func() {
			_ = cmd.Process.Kill() // an error says that it has ended
			_ = cmd.Wait()
		})
		port := 51871
		client := &userspace.Client{RunDir: dir}
		eventually(c.t, "the process of "+names[i]+" answers", 10*time.Second, func() error {
			_, err := client.Device("bare0")
			return err
		})
		check(c.t, client.ConfigureDevice("bare0", wgtypes.Config{PrivateKey: &keys[i], ListenPort: &port,
			Peers: []wgtypes.PeerConfig{{PublicKey: keys[1-i].PublicKey(),
				Endpoint:   &net.UDPAddr{IP: net.IPv4(192, 0, 2, byte(2-i)), Port: port},
				AllowedIPs: []net.IPNet{{IP: net.IPv4(10, 99, 0, 0).To4(), Mask: net.CIDRMask(24, 32)}}}}}))
		c.shell("ip -n %s addr add %s/24 dev bare0 && ip -n %s link set bare0 up", names[i], ends[i].addr(4), names[i])
	}
	return ends[0], ends[1]
}

func (c *cluster) shell(format string, args ...any) {
	c.t.Helper()
	text := fmt.Sprintf(format, args...)
	if out, err := exec.Command("sh", "-c", text).CombinedOutput(); err != nil {
		c.t.Fatalf("%s: %v: %s", text, err, out)
	}
}
