package service

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// numbers gives IDs to keys, and keeps them in a file over restarts: lines of
// JSON, of which the first holds the version of the format. A number costs one
// line at the file's end; now and then the file is written anew without those
// that are gone. Numbers that were let go rest until all 2^32 were given.
type numbers[K interface {
	comparable
	fmt.Stringer
}] struct {
	path  string // empty: nothing is kept
	next  uint32
	byKey map[K]uint32
	used  map[uint32]bool
	// kept are those of the file that nobody has asked for yet, by key as text.
	kept  map[string]uint32
	fresh []record // not in the file yet
	file  *os.File
	lines int
}

// record is a line.
type record struct {
	Version int    `json:"version,omitempty"`
	Next    uint32 `json:"next,omitempty"`
	ID      uint32 `json:"id,omitempty"`
	Key     string `json:"key,omitempty"`
}

const version = 1

// newNumbers reads the file and opens it to go on; numbers up to last are
// somebody's already, whatever the file says. Only a file that can't be
// written makes numbers nil; one that can't be used is begun anew, and bad says
// why.
func newNumbers[K interface {
	comparable
	fmt.Stringer
}](path string, last uint32) (n *numbers[K], bad, err error) {
	n = &numbers[K]{path: path, next: last + 1, byKey: map[K]uint32{}, used: map[uint32]bool{}, kept: map[string]uint32{}}
	if path == "" {
		return n, nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		bad = err
	} else if err := n.decode(data); err != nil {
		bad = fmt.Errorf("read numbers from %s: %w", path, err)
		n.next, n.used, n.kept = last+1, map[uint32]bool{}, map[string]uint32{}
	}
	if err := n.rewrite(); err != nil {
		return nil, nil, err
	}
	return n, bad, nil
}

// decode reads lines. The last one may be torn by a crash: its number was never
// used. Of two lines with one key, the later one counts.
func (n *numbers[K]) decode(data []byte) error {
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		if number == 1 && r.Version != version {
			return fmt.Errorf("version %d is not %d", r.Version, version)
		}
		n.next = max(n.next, r.Next)
		if r.ID == 0 {
			continue
		}
		if r.Key == "" || n.used[r.ID] {
			return fmt.Errorf("line %d: number %d is not valid here", number, r.ID)
		}
		delete(n.used, n.kept[r.Key])
		n.kept[r.Key], n.used[r.ID] = r.ID, true
		if r.ID+1 > n.next {
			n.next = r.ID + 1
		}
	}
	return nil
}

// get is the number of a key, a new one if it has none.
func (n *numbers[K]) get(key K) uint32 {
	if id, ok := n.byKey[key]; ok {
		return id
	}
	if len(n.kept) > 0 {
		text := key.String()
		if id, ok := n.kept[text]; ok {
			delete(n.kept, text)
			n.byKey[key] = id
			return id
		}
	}
	for n.next == 0 || n.used[n.next] {
		n.next++ // after 2^32 the numbers begin again
	}
	id := n.next
	n.next++
	n.byKey[key], n.used[id] = id, true
	if n.path != "" {
		n.fresh = append(n.fresh, record{ID: id, Key: key.String()})
	}
	return id
}

// release lets a number go.
func (n *numbers[K]) release(key K) {
	delete(n.used, n.byKey[key])
	delete(n.byKey, key)
}

// releaseKept lets the numbers go that nobody has asked for since the start.
func (n *numbers[K]) releaseKept() {
	for _, id := range n.kept {
		delete(n.used, id)
	}
	n.kept = map[string]uint32{}
}

// save writes new numbers to the file. A number must be there before anybody
// sees it, or a crash could give it to another key while the kernel holds it.
func (n *numbers[K]) save() error {
	if n.path == "" || len(n.fresh) == 0 {
		return nil
	}
	if n.lines > 2*len(n.used)+1024 {
		return n.rewrite()
	}
	n.fresh[len(n.fresh)-1].Next = n.next
	var b bytes.Buffer
	if err := encode(&b, n.fresh...); err != nil {
		return err
	}
	if _, err := n.file.Write(b.Bytes()); err != nil {
		n.lines = math.MaxInt // half a line may be there: write it all anew
		return fmt.Errorf("append to %s: %w", n.path, err)
	}
	n.lines += len(n.fresh)
	n.fresh = nil
	return nil
}

// rewrite makes the file hold the numbers in use, atomically, and keeps it
// open.
func (n *numbers[K]) rewrite() error {
	tmp := n.path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("write numbers: %w", err)
	}
	w := bufio.NewWriter(f)
	err = encode(w, record{Version: version, Next: n.next})
	for key, id := range n.byKey {
		err = errors.Join(err, encode(w, record{ID: id, Key: key.String()}))
	}
	for key, id := range n.kept {
		err = errors.Join(err, encode(w, record{ID: id, Key: key}))
	}
	if err = errors.Join(err, w.Flush()); err == nil {
		err = os.Rename(tmp, n.path)
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("write numbers to %s: %w", n.path, err)
	}
	n.close()
	n.file, n.lines, n.fresh = f, len(n.used)+1, nil
	return nil
}

func encode(w io.Writer, records ...record) error {
	enc := json.NewEncoder(w)
	for _, r := range records {
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

func (n *numbers[K]) close() {
	if n.file != nil {
		n.file.Close()
		n.file = nil
	}
}
