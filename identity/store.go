package identity

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
)

// store is the state file: lines of JSON, of which the first holds the version
// of the format. A number costs one line at its end; now and then the file is
// written anew without those that are gone.
type store struct {
	path  string // empty: nothing is kept
	file  *os.File
	lines int
}

// record is a line.
type record struct {
	Version int      `json:"version,omitempty"`
	Next    uint32   `json:"next,omitempty"`
	ID      uint32   `json:"id,omitempty"`
	Labels  []string `json:"labels,omitempty"`
}

const version = 1

// load reads the file. The last line may be torn by a crash: its number was
// never used.
func (s *store) load() (next uint32, rows []*Identity, err error) {
	if s.path == "" {
		return First, nil, nil
	}
	data, err := os.ReadFile(s.path)
	if errors.Is(err, os.ErrNotExist) {
		return First, nil, nil
	}
	if err == nil {
		next, rows, err = decode(data)
	}
	if err != nil {
		return First, nil, fmt.Errorf("read identities from %s: %w", s.path, err)
	}
	return next, rows, nil
}

func decode(data []byte) (next uint32, rows []*Identity, err error) {
	next = First
	ids, sets := map[uint32]bool{}, map[string]bool{}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			return 0, nil, fmt.Errorf("line %d: %w", number, err)
		}
		if number == 1 && r.Version != version {
			return 0, nil, fmt.Errorf("version %d is not %d", r.Version, version)
		}
		next = max(next, r.Next)
		if r.ID == 0 {
			continue
		}
		k := labelKey(r.Labels)
		if r.ID < First || len(r.Labels) == 0 || !slices.IsSorted(r.Labels) || ids[r.ID] || sets[k] {
			return 0, nil, fmt.Errorf("line %d: number %d or its labels are not valid here", number, r.ID)
		}
		ids[r.ID], sets[k] = true, true
		rows = append(rows, &Identity{ID: r.ID, Labels: r.Labels})
		if r.ID+1 > next {
			next = r.ID + 1
		}
	}
	return next, rows, nil
}

// wasteful reports whether most lines are of identities that are gone.
func (s *store) wasteful(live int) bool { return s.path != "" && s.lines > 2*live+1024 }

// append writes identities to the end of the file.
func (s *store) append(next uint32, rows []*Identity) error {
	if s.path == "" || len(rows) == 0 {
		return nil
	}
	var b bytes.Buffer
	for _, row := range rows {
		if err := encode(&b, record{Next: next, ID: row.ID, Labels: row.Labels}); err != nil {
			return err
		}
	}
	if _, err := s.file.Write(b.Bytes()); err != nil {
		s.lines = math.MaxInt // half a line may be there: write it all anew
		return fmt.Errorf("append to %s: %w", s.path, err)
	}
	s.lines += len(rows)
	return nil
}

// rewrite makes the file hold these identities, atomically, and keeps it open.
func (s *store) rewrite(next uint32, rows []*Identity) error {
	if s.path == "" {
		return nil
	}
	tmp := s.path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("write identities: %w", err)
	}
	w := bufio.NewWriter(f)
	err = encode(w, record{Version: version, Next: next})
	for _, row := range rows {
		err = errors.Join(err, encode(w, record{ID: row.ID, Labels: row.Labels}))
	}
	if err = errors.Join(err, w.Flush()); err == nil {
		err = os.Rename(tmp, s.path)
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("write identities to %s: %w", s.path, err)
	}
	s.close()
	s.file, s.lines = f, len(rows)+1
	return nil
}

func encode(w interface{ Write([]byte) (int, error) }, r record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

func (s *store) close() {
	if s.file != nil {
		s.file.Close()
		s.file = nil
	}
}
