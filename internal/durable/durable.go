// Package durable writes small files that outlive a crash and a power failure.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// temporary ends the names of files that a crash may leave half written.
const temporary = ".tmp"

// Write replaces the file at path as one step, mode 0600, and makes its
// directory (0700) if need be. When it returns without an error, data is on the
// disk; with one, what was there is there still.
func Write(path string, data []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f, err := os.OpenFile(path+temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(f.Name())))
	}
	return syncDir(dir)
}

// Full reports whether a write failed for want of room.
func Full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// probeSize is what Probe writes: a page, since less may find room where a file
// of state would not.
const probeSize = 4096

// Probe reports why no file can be written to a directory, as where its file
// system is full; nil if one can.
func Probe(dir string) error {
	f, err := os.CreateTemp(dir, "probe-*"+temporary)
	if err != nil {
		return fmt.Errorf("directory %s can't be written: %w", dir, err)
	}
	_, err = f.Write(make([]byte, probeSize))
	if err = errors.Join(err, f.Close()); err != nil {
		err = fmt.Errorf("directory %s can't be written: %w", dir, err)
	}
	return errors.Join(err, os.Remove(f.Name()))
}

// Load reads the files of dir whose names end in suffix, by name, and removes
// what a crash left half written. One that read refuses is an error of its own
// in bad, and stays for the operator to look at. A directory that isn't there is
// an empty one.
func Load[T any](dir, suffix string, read func(path string) (T, error)) (all []T, bad []error, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		switch filepath.Ext(path) {
		case temporary:
			if err := os.Remove(path); err != nil {
				bad = append(bad, err)
			}
		case suffix:
			one, err := read(path)
			if err != nil {
				bad = append(bad, err)
				continue
			}
			all = append(all, one)
		}
	}
	return all, bad, nil
}

// Remove deletes the file at path for good; one that isn't there is no error.
func Remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove a file: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes what was renamed or removed in a directory last.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync a directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
