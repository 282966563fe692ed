package tune

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"myelin/internal/durable"
)

// UndoFile is the name of the file of undo, in the run directory: a reboot removes it, and the settings with it.
const UndoFile = "tune.json"

// change is a setting that Apply has written.
type change struct {
	Kind    Kind   `json:"kind"`
	Key     string `json:"key"`
	Was     string `json:"was"`     // before the first write
	Written string `json:"written"` // what was read after the last one
}

// undoLog is the file of undo, in the order of the first writes.
type undoLog struct {
	file    string
	changes []change
}

func openUndo(file string) (*undoLog, error) {
	u := &undoLog{file: file}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return u, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &u.changes)
	}
	if err != nil {
		return nil, fmt.Errorf("read what was there before from %s: %w", file, err)
	}
	return u, nil
}

func (u *undoLog) save() error {
	if len(u.changes) == 0 {
		return durable.Remove(u.file)
	}
	data, err := json.MarshalIndent(u.changes, "", "  ")
	if err == nil {
		err = durable.Write(u.file, append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("keep what was there before: %w", err)
	}
	return nil
}

// write keeps what was there, writes, and keeps what the setting shows then, as some values are shown in another form.
func (u *undoLog) write(s Store, e Entry) error {
	i := slices.IndexFunc(u.changes, func(c change) bool { return c.Kind == e.Kind && c.Key == e.Key })
	fresh := i < 0
	if fresh {
		i = len(u.changes)
		u.changes = append(u.changes, change{Kind: e.Kind, Key: e.Key, Was: e.Current})
	}
	u.changes[i].Written = e.Recommended
	if err := u.save(); err != nil {
		return err
	}
	if err := s.Write(e.Key, e.Recommended); err != nil {
		if fresh {
			u.changes = u.changes[:i]
		} else {
			u.changes[i].Written = e.Current
		}
		return errors.Join(fmt.Errorf("set %s to %q: %w", e.Key, e.Recommended, err), u.save())
	}
	shown, err := s.Read(e.Key)
	if err != nil {
		return fmt.Errorf("read %s again: %w", e.Key, err)
	}
	if shown == e.Recommended {
		return nil
	}
	u.changes[i].Written = shown
	if shown == u.changes[i].Was {
		u.changes = slices.Delete(u.changes, i, i+1)
	}
	if shown == e.Current {
		err = fmt.Errorf("%s stays %s: the machine does not take %q", e.Key, shown, e.Recommended)
	}
	return errors.Join(err, u.save())
}

// Revert restores what was there before the first Apply, the last change first, and removes the file of undo. A setting
// that another program has changed since is left as it is, and is in left.
func Revert(m *Machine, undo string) (restored, left []string, err error) {
	u, err := openUndo(undo)
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	for i := len(u.changes) - 1; i >= 0; i-- {
		c := u.changes[i]
		s := m.store(c.Kind)
		now, err := s.Read(c.Key)
		switch {
		case missing(err): // its device is gone
		case err != nil:
			errs = append(errs, fmt.Errorf("read %s: %w", c.Key, err))
			continue
		case now == c.Was:
		case now != c.Written:
			left = append(left, fmt.Sprintf("%s is %q: it was changed after it had been set to %q (before: %q)", c.Key,
				now, c.Written, c.Was))
		default:
			if err := s.Write(c.Key, c.Was); err != nil {
				errs = append(errs, fmt.Errorf("set %s back to %q: %w", c.Key, c.Was, err))
				continue
			}
			restored = append(restored, fmt.Sprintf("%s = %s", c.Key, c.Was))
		}
		u.changes = slices.Delete(u.changes, i, i+1)
		if err := u.save(); err != nil {
			return restored, left, errors.Join(append(errs, err)...)
		}
	}
	return restored, left, errors.Join(errs...)
}
