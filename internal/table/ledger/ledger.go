// Package ledger keeps numbers in a file, so that they outlive the agent: lines
// of JSON, of which the first holds the version of the format. A number costs
// one line at the file's end; now and then the file is written anew without
// those that are gone.
package ledger

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"myelin/internal/durable"
)

const version = 1

// Head is what all lines have; records embed it.
type Head struct {
	Version int    `json:"version,omitempty"` // of the first line, which has no number
	Next    uint32 `json:"next,omitempty"`    // the number to give next
	ID      uint32 `json:"id,omitempty"`
}

func (h Head) head() Head { return h }

// Record is a line: a struct that embeds Head, and says whose the number is.
type Record interface{ head() Head }

// Ledger is an open file. With the path "" it keeps nothing.
type Ledger[R Record] struct {
	Path  string
	file  *os.File
	lines int
	torn  bool // half a line may be at the end
}

// Read calls each with the records, and returns the number to give next: first
// or more. A file that isn't there is empty. Errors name the file.
func (l *Ledger[R]) Read(first uint32, each func(R) error) (next uint32, err error) {
	if l.Path == "" {
		return first, nil
	}
	data, err := os.ReadFile(l.Path)
	if errors.Is(err, os.ErrNotExist) {
		return first, nil
	}
	if err == nil {
		next, err = Decode(data, first, each)
	}
	if err != nil {
		return 0, fmt.Errorf("read numbers from %s: %w", l.Path, err)
	}
	return next, nil
}

// Decode is Read of what a file holds. The last line may be torn by a crash:
// its number was never used.
func Decode[R Record](data []byte, first uint32, each func(R) error) (next uint32, err error) {
	next = first
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var r R
		if err := json.Unmarshal(line, &r); err != nil {
			return 0, fmt.Errorf("line %d: %w", number, err)
		}
		h := r.head()
		if number == 1 && h.Version != version {
			return 0, fmt.Errorf("version %d is not %d", h.Version, version)
		}
		next = max(next, h.Next)
		if h.ID == 0 {
			continue
		}
		if err := each(r); err != nil {
			return 0, fmt.Errorf("line %d: %w", number, err)
		}
		if h.ID+1 > next {
			next = h.ID + 1
		}
	}
	return next, nil
}

// Wasteful reports whether the file is to be written anew: most lines are of
// numbers that are gone, live being how many are not, or Append has failed.
func (l *Ledger[R]) Wasteful(live int) bool {
	return l.Path != "" && (l.torn || l.lines > 2*live+1024)
}

// Append writes records to the end of the file, which Rewrite has opened. Once
// it has failed it does so until the next Rewrite.
func (l *Ledger[R]) Append(records []R) error {
	if l.Path == "" || len(records) == 0 {
		return nil
	}
	if l.torn {
		return fmt.Errorf("append to %s: it must be written anew first", l.Path)
	}
	var b bytes.Buffer
	for _, r := range records {
		if err := encode(&b, r); err != nil {
			return err
		}
	}
	if _, err := l.file.Write(b.Bytes()); err != nil {
		l.torn = true
		return fmt.Errorf("append to %s: %w", l.Path, err)
	}
	l.lines += len(records)
	return nil
}

// Rewrite makes the file hold these records, atomically, and keeps it open.
func (l *Ledger[R]) Rewrite(next uint32, records iter.Seq[R]) error {
	if l.Path == "" {
		return nil
	}
	tmp := l.Path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("write numbers: %w", err)
	}
	w := bufio.NewWriter(f)
	lines, err := Encode(w, next, records)
	if err = errors.Join(err, w.Flush()); err == nil {
		err = os.Rename(tmp, l.Path)
	}
	if err != nil {
		f.Close()
		_ = os.Remove(tmp) // on a full disk, what was written of it would take room
		return fmt.Errorf("write numbers to %s: %w", l.Path, err)
	}
	l.Close()
	l.file, l.lines, l.torn = f, lines, false
	return nil
}

// Start is the first Rewrite. Where there is no room for the file, it stays as it is, which is what the records
// were read from: full says so. Append then fails, and the file is due to be written anew, until there is room.
func (l *Ledger[R]) Start(next uint32, records iter.Seq[R]) (full, err error) {
	err = l.Rewrite(next, records)
	if durable.Full(err) {
		l.torn = true
		return err, nil
	}
	return nil, err
}

// Encode writes what a file holds, and returns how many lines that are.
func Encode[R Record](w io.Writer, next uint32, records iter.Seq[R]) (lines int, err error) {
	err = encode(w, Head{Version: version, Next: next})
	lines = 1
	for r := range records {
		if err != nil {
			break
		}
		err = encode(w, r)
		lines++
	}
	return lines, err
}

func encode(w io.Writer, line any) error { return json.NewEncoder(w).Encode(line) }

// Close closes the file.
func (l *Ledger[R]) Close() {
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}
