package userspace

import (
	"errors"
	"reflect"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

// The process holds packets in buffers of 64 KB, whatever their size, in queues that would take gigabytes.
const (
	// maxBuffers is how many there are at most, 192 MB. What is read from the network waits for one.
	maxBuffers = 3072
	// sendBuffers is how many may be in use when packets of pods are read, so that what arrives is not held up by what
	// waits to be sent, and handshakes are answered.
	sendBuffers = 2048
	// MemoryLimit is what the collector of garbage keeps the process's memory below, in bytes: the buffers, and 128 MB
	// for some thousand peers of 20 KB.
	MemoryLimit = maxBuffers*65536 + 128<<20
	// flushAfter is how long no buffer becomes free before packets are dropped that wait for a session.
	flushAfter = 2 * time.Millisecond
)

// bounded is a TUN device that is read when there are buffers for its packets. What does not fit into its queue
// meanwhile is dropped by the kernel, which counts it.
type bounded struct {
	tun.Device
	ready  chan struct{} // closed by limit
	closed chan struct{}

	held     *uint32 // buffers in use
	send     uint32  // as sendBuffers
	flush    func()  // drops what waits for sessions
	flushing atomic.Bool
}

func newBounded(t tun.Device) *bounded {
	return &bounded{Device: t, ready: make(chan struct{}), closed: make(chan struct{})}
}

// limit bounds the buffers of the device that reads from b, as maxBuffers and sendBuffers. It takes none before that.
func (b *bounded) limit(d *device.Device, buffers, send uint32) error {
	pool := reflect.ValueOf(d).Elem().FieldByName("pool")
	if pool.Kind() == reflect.Struct {
		pool = pool.FieldByName("messageBuffers")
	}
	limit, held := uint32Of(pool, "max"), uint32Of(pool, "count")
	if limit == nil || held == nil {
		return errors.New("wireguard-go has another pool of buffers than the one that is known here")
	}
	*limit, b.held, b.send = buffers, held, send // the limit is a constant of wireguard-go otherwise: none
	b.flush = func() { flushStaged(d) }
	close(b.ready)
	return nil
}

// uint32Of is a field of what p points to, nil if there is no such field.
func uint32Of(p reflect.Value, name string) *uint32 {
	if p.Kind() != reflect.Pointer || p.IsNil() || p.Elem().Kind() != reflect.Struct {
		return nil
	}
	field := p.Elem().FieldByName(name)
	if field.Kind() != reflect.Uint32 {
		return nil
	}
	return (*uint32)(unsafe.Pointer(field.UnsafeAddr()))
}

// BatchSize implements tun.Device. The device calls it before it takes buffers to read into.
func (b *bounded) BatchSize() int {
	<-b.ready
	return b.Device.BatchSize()
}

// Events implements tun.Device. The device calls it before it opens sockets, for which it takes buffers.
func (b *bounded) Events() <-chan tun.Event {
	<-b.ready
	return b.Device.Events()
}

// Read implements tun.Device.
func (b *bounded) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	b.wait()
	return b.Device.Read(bufs, sizes, offset)
}

// Close implements tun.Device. The device calls it once.
func (b *bounded) Close() error {
	close(b.closed)
	return b.Device.Close()
}

// wait returns when packets may be read, or the device is closed. Packets that are being sent make room soon; those
// that wait for sessions with nodes that do not answer would not. Cost: a comparison.
func (b *bounded) wait() {
	var least uint32    // buffers in use since this began
	var since time.Time // of that
	for held := atomic.LoadUint32(b.held); held > b.send; held = atomic.LoadUint32(b.held) {
		if since.IsZero() || held < least {
			least, since = held, time.Now()
		}
		if time.Since(since) > flushAfter && b.flushing.CompareAndSwap(false, true) {
			go func() { // Close would wait for this one, which waits for the end of Close
				defer b.flushing.Store(false)
				b.flush()
			}()
		}
		select {
		case <-b.closed:
			return
		case <-time.After(100 * time.Microsecond):
		}
	}
}

// flushStaged drops the packets that wait for sessions.
func flushStaged(d *device.Device) {
	state, err := d.IpcGet()
	if err != nil {
		return
	}
	for line := range strings.Lines(state) {
		text, ok := strings.CutPrefix(strings.TrimSpace(line), "public_key=")
		var key device.NoisePublicKey
		if !ok || key.FromHex(text) != nil {
			continue
		}
		if p := d.LookupPeer(key); p != nil {
			p.FlushStagedPackets()
		}
	}
}

// memory is what the process takes, in bytes.
func memory() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() - s[1].Value.Uint64()
}
