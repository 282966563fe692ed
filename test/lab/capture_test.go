package labtest

import (
	"bytes"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"myelin/internal/capture"
)

// tap reads all frames on eth0 of places, in both directions, and counts those that have each text in their first
// octets. A frame that the kernel had no room for fails the test.
type tap struct {
	*cluster
	texts [][]byte
	keep  func(place string, frame []byte) // is called with each frame, if it is not nil
	group errgroup.Group
	rings []*capture.Ring
	at    map[string][]atomic.Int64 // counts by place
}

// tap opens a tap on all nodes.
func (c *cluster) tap(texts ...[]byte) *tap { return c.keepingTap(nil, texts...) }

// keepingTap is tap, and has each frame given to keep, which is safe for concurrent use.
func (c *cluster) keepingTap(keep func(place string, frame []byte), texts ...[]byte) *tap {
	c.t.Helper()
	t := &tap{cluster: c, texts: texts, keep: keep, at: map[string][]atomic.Int64{}}
	c.t.Cleanup(t.close)
	for _, n := range c.Nodes() {
		t.add(n.Name(), n)
	}
	return t
}

// add reads the frames of a place, too; again if it has another eth0.
func (t *tap) add(name string, p place) {
	t.t.Helper()
	var ring *capture.Ring
	check(t.t, p.Do(func() (err error) {
		ring, err = capture.Open("eth0", slots)
		return err
	}))
	t.rings = append(t.rings, ring)
	if t.at[name] == nil {
		t.at[name] = make([]atomic.Int64, len(t.texts))
	}
	counts := t.at[name]
	t.group.Go(func() error { return t.read(name, ring, counts) })
}

// seen is how many frames had a text until now.
func (t *tap) seen(text int) (n int) {
	for name := range t.at {
		n += t.seenAt(name, text)
	}
	return n
}

// seenAt is seen, of one place.
func (t *tap) seenAt(name string, text int) int { return int(t.at[name][text].Load()) }

func (t *tap) close() {
	for _, ring := range t.rings {
		ring.Close()
	}
}

// end ends it when it has read what is in the sockets still.
func (t *tap) end() {
	t.t.Helper()
	time.Sleep(patience(100 * time.Millisecond))
	for _, ring := range t.rings {
		t.noneLost(ring)
	}
	t.close()
	if err := t.group.Wait(); err != nil {
		t.t.Errorf("capture: %v", err)
	}
}

// capture opens a tap on all nodes until seen is called, which returns how many frames had each text.
func (c *cluster) capture(texts ...[]byte) (seen func() []int) {
	c.t.Helper()
	t := c.tap(texts...)
	return func() (list []int) {
		t.end()
		for i := range texts {
			list = append(list, t.seen(i))
		}
		return list
	}
}

// slots is how many frames of a capture may wait to be read.
const slots = 1 << 14

// receiveBuffer has room for frames that are not read yet.
func receiveBuffer(fd int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
}

// read reads the frames of a place.
func (t *tap) read(place string, ring *capture.Ring, counts []atomic.Int64) error {
	return ring.Each(func(s capture.Slot) {
		frame := s.Frame()
		for i, text := range t.texts {
			if bytes.Contains(frame, text) {
				counts[i].Add(1)
			}
		}
		if t.keep != nil {
			t.keep(place, frame)
		}
	})
}

// noneLost reports frames that the kernel had no room for, and a capture without frames.
func (c *cluster) noneLost(ring *capture.Ring) {
	c.t.Helper()
	if frames, lost, err := ring.Stats(); err != nil || lost > 0 || frames == 0 {
		c.t.Errorf("of %d frames the capture has lost %d: %v", frames, lost, err)
	}
}
