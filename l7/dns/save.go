package dns

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/netip"

	"myelin/cluster"
)

// A saved state is a sequence of records. Each has the name of a pod with all of its addresses, and replaces the one
// before it; a name without addresses is forgotten. A record is a length and a CRC-32C of 4 bytes each, and the text.
// As the times are those of CLOCK_MONOTONIC, a state is of use until the machine is booted again, as the map is.
//
// Records that proxies wrote before November 2026 have the CRC-32 of IEEE 802.3, and of each address the end of its
// validity alone, not that of its TTL.
const (
	frameLen      = 8
	maxRecordLen  = 1 << 24
	linkLen       = 16 + 8 + 8
	formerLinkLen = 16 + 8
)

// checksum is that of records.
func checksum(text []byte) uint32 { return crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)) }

// Save writes the whole state.
func (e *Engine) Save(w io.Writer) error {
	e.mu.Lock()
	e.rewrite = false
	e.mu.Unlock()
	return e.save(w, func(ep *endpoint, b []byte) []byte {
		for _, n := range ep.names {
			b = ep.appendRecord(b, n)
		}
		return b
	})
}

// saveChanges writes what has changed since the last Save or saveChanges.
func (e *Engine) saveChanges(w io.Writer) error {
	return e.save(w, func(ep *endpoint, b []byte) []byte {
		for _, n := range ep.changed {
			b = ep.appendRecord(b, n)
		}
		return b
	})
}

func (e *Engine) save(w io.Writer, records func(ep *endpoint, b []byte) []byte) error {
	for _, ep := range e.all() {
		ep.mu.Lock()
		b := records(ep, nil)
		for _, n := range ep.changed {
			n.changed = false
		}
		ep.changed = nil
		ep.mu.Unlock()
		if len(b) == 0 {
			continue
		}
		if _, err := w.Write(b); err != nil {
			e.mu.Lock()
			e.rewrite = true // changes are no longer noted
			e.mu.Unlock()
			return fmt.Errorf("save names of pod %s: %w", ep.pod, err)
		}
	}
	return nil
}

func (ep *endpoint) appendRecord(b []byte, n *name) []byte {
	start := len(b)
	b = append(b, make([]byte, frameLen)...)
	b = binary.BigEndian.AppendUint16(b, ep.slot)
	for _, text := range []string{ep.pod.Namespace, ep.pod.Name, n.text} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	for _, l := range n.links {
		addr := l.address.addr.As16()
		b = append(b, addr[:]...)
		b = binary.BigEndian.AppendUint64(b, l.expires)
		b = binary.BigEndian.AppendUint64(b, l.ttl)
	}
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-frameLen))
	binary.BigEndian.PutUint32(b[start+4:], checksum(b[start+frameLen:]))
	return b
}

// Restore reads a state, and writes the addresses to the map. It is called before the first packet, after Configure:
// pods that the configuration does not have are left out. A crash may have cut the last record off; what follows it is
// lost, and the error says so.
func (e *Engine) Restore(r io.Reader) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	in := bufio.NewReaderSize(r, 1<<16)
	var frame [frameLen]byte
	var text []byte
	for {
		if _, err := io.ReadFull(in, frame[:]); err == io.EOF {
			break
		} else if err != nil {
			return e.restored(fmt.Errorf("restore names: %w", err))
		}
		size := binary.BigEndian.Uint32(frame[:])
		if size > maxRecordLen {
			return e.restored(errors.New("restore names: a record is too long"))
		}
		if uint32(cap(text)) < size {
			text = make([]byte, size)
		}
		text = text[:size]
		if _, err := io.ReadFull(in, text); err != nil {
			return e.restored(fmt.Errorf("restore names: a record is cut off: %w", err))
		}
		linkSize := linkLen
		switch binary.BigEndian.Uint32(frame[4:]) {
		case checksum(text):
		case crc32.ChecksumIEEE(text):
			linkSize = formerLinkLen
		default:
			return e.restored(errors.New("restore names: a record has the wrong CRC"))
		}
		if !e.restore(text, linkSize) {
			return e.restored(errors.New("restore names: a record is not understood"))
		}
	}
	return e.restored(nil)
}

// restore takes a record whose addresses have a size.
func (e *Engine) restore(b []byte, size int) bool {
	if len(b) < 2 {
		return false
	}
	slot := binary.BigEndian.Uint16(b)
	b = b[2:]
	var texts [3]string
	for i := range texts {
		length, n := binary.Uvarint(b)
		if n <= 0 || length > uint64(len(b)-n) {
			return false
		}
		texts[i], b = string(b[n:n+int(length)]), b[n+int(length):]
	}
	if len(b)%size != 0 {
		return false
	}
	ep := e.endpoints[slot]
	if ep == nil || ep.pod != (cluster.Key{Namespace: texts[0], Name: texts[1]}) {
		return true
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	e.restoreName(ep, texts[2], b, size)
	return true
}

func (e *Engine) restoreName(ep *endpoint, text string, links []byte, size int) {
	now := e.Clock.Monotonic()
	if n := ep.names[text]; n != nil {
		for len(n.links) > 0 {
			a := n.links[0].address
			e.unlink(ep, n, 0)
			a.reselect()
			if len(a.names) == 0 {
				delete(ep.addresses, a.addr)
			}
		}
		delete(ep.names, text)
	}
	if len(links) == 0 {
		return
	}
	var s scratch
	n := e.nameOf(ep, e.current.Load(), &s, []byte(text))
	for ; len(links) > 0; links = links[size:] {
		addr := netip.AddrFrom16([16]byte(links)).Unmap()
		expires := binary.BigEndian.Uint64(links[16:])
		ttl := expires
		if size == linkLen {
			ttl = binary.BigEndian.Uint64(links[24:])
		}
		e.link(ep, n, addr, link{ttl: ttl, expires: expires}, now)
	}
}

// restored writes the addresses to the map, and returns err.
func (e *Engine) restored(err error) error {
	now := e.Clock.Monotonic()
	for _, ep := range e.endpoints {
		ep.mu.Lock()
		for _, a := range ep.addresses {
			e.write(ep, a, now)
		}
		ep.mu.Unlock()
	}
	return err
}
