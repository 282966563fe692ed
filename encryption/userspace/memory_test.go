package userspace

import (
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// limited is a device without a TUN device, with a key, and with that many buffers.
func limited(t *testing.T, private wgtypes.Key, buffers, send uint32) (*device.Device, *bounded, *tuntest.ChannelTUN) {
	t.Helper()
	packets := tuntest.NewChannelTUN()
	b := newBounded(packets.TUN())
	d := device.NewDevice(b, conn.NewDefaultBind(), &device.Logger{
		Verbosef: device.DiscardLogf, Errorf: device.DiscardLogf})
	if err := b.limit(d, buffers, send); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	if err := d.IpcSet(fmt.Sprintf("private_key=%x\nlisten_port=0\n", private[:])); err != nil {
		t.Fatal(err)
	}
	if err := d.Up(); err != nil {
		t.Fatal(err)
	}
	return d, b, packets
}

// listenPort is the UDP port of a device.
func listenPort(t *testing.T, d *device.Device) string {
	t.Helper()
	state, err := d.IpcGet()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(state, "listen_port=")
	port, _, _ := strings.Cut(rest, "\n")
	return port
}

// TestMemory: packets to many nodes that do not answer neither take more buffers than there may be, nor keep those from
// a node that does.
//
//	one ── 40 nodes that do not answer, 40 × 128 packets would wait
//	  └─── two
func TestMemory(t *testing.T) {
	t.Parallel()
	const buffers, send, silent = 1024, 768, 40
	keys := [2]wgtypes.Key{key(t), key(t)}
	one, b, packets := limited(t, keys[0], buffers, send)
	two, _, arrived := limited(t, keys[1], buffers, send)
	public := [2]wgtypes.Key{keys[0].PublicKey(), keys[1].PublicKey()}
	var text strings.Builder
	fmt.Fprintf(&text, "public_key=%x\nallowed_ip=10.0.0.2/32\nendpoint=127.0.0.1:%s\n", public[1][:],
		listenPort(t, two))
	for i := range silent {
		other := key(t).PublicKey()
		fmt.Fprintf(&text, "public_key=%x\nallowed_ip=10.1.0.%d/32\nendpoint=127.0.0.1:9\n", other[:], i)
	}
	if err := one.IpcSet(text.String()); err != nil {
		t.Fatal(err)
	}
	if err := two.IpcSet(fmt.Sprintf("public_key=%x\nallowed_ip=10.0.0.1/32\n", public[0][:])); err != nil {
		t.Fatal(err)
	}
	source := netip.MustParseAddr("10.0.0.1")
	var most uint32
	for i := range 200 * silent {
		to := netip.AddrFrom4([4]byte{10, 1, 0, byte(i % silent)})
		select {
		case packets.Outbound <- tuntest.Ping(to, source):
		case <-time.After(10 * time.Second):
			t.Fatalf("packet %d is not read, with %d buffers in use", i, atomic.LoadUint32(b.held))
		}
		most = max(most, atomic.LoadUint32(b.held))
	}
	if most <= send || most > buffers {
		t.Errorf("%d buffers were in use, want more than %d, at most %d", most, send, buffers)
	}
	t.Logf("%d buffers were in use", most)
	for end := time.Now().Add(10 * time.Second); ; {
		packets.Outbound <- tuntest.Ping(netip.MustParseAddr("10.0.0.2"), source)
		select {
		case <-arrived.Inbound:
			return
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatal("nothing arrives at the node that answers")
		}
	}
}

// TestClosedWhileWaiting: a device is closed whose buffers are all in use.
func TestClosedWhileWaiting(t *testing.T) {
	t.Parallel()
	_, b, _ := limited(t, key(t), 1024, 0)
	for atomic.LoadUint32(b.held) == 0 {
		time.Sleep(time.Millisecond)
	}
}
