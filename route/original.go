package route

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"myelin/internal/durable"
)

// OriginalsFile is the name of the agent's file of originals, in its run directory.
const OriginalsFile = "sysctls.json"

// originals are kernel parameters as they were before the first agent wrote them, kept in a file, so that they can be
// put back when Myelin goes. What belongs to a pod link goes with the link, and is not kept.
type originals struct {
	file string // empty: nothing is kept

	mu    sync.Mutex
	known map[string]string // by name below /proc/sys
}

// openOriginals reads the file; none is an empty one.
func openOriginals(file string) (*originals, error) {
	o := &originals{file: file, known: map[string]string{}}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &o.known)
	}
	if err != nil {
		return nil, fmt.Errorf("read kernel parameters of before from %s: %w", file, err)
	}
	return o, nil
}

// keep writes down what a parameter was, once.
func (o *originals) keep(name, value string) error {
	if o == nil || o.file == "" || strings.HasPrefix(sysctlDevice(name), PodPrefix) {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.known[name]; ok {
		return nil
	}
	next := maps.Clone(o.known)
	next[name] = value
	data, err := json.MarshalIndent(next, "", "  ")
	if err == nil {
		err = durable.Write(o.file, append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("keep what it was: %w", err)
	}
	o.known = next
	return nil
}

// RestoreSysctls gives kernel parameters the values that are kept in file, and removes it. procSys is "/proc/sys", of
// the thread's network namespace. Those of all devices come before those of one, which they change. It returns what was
// written, "NAME = VALUE".
func RestoreSysctls(file, procSys string) (written []string, err error) {
	o, err := openOriginals(file)
	if err != nil {
		return nil, err
	}
	names := slices.SortedFunc(maps.Keys(o.known), func(a, b string) int {
		one := func(name string) int {
			if d := sysctlDevice(name); d == "" || d == "all" {
				return 0
			}
			return 1
		}
		if n := one(a) - one(b); n != 0 {
			return n
		}
		return strings.Compare(a, b)
	})
	var errs []error
	for _, name := range names {
		path := filepath.Join(procSys, name)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue // its device is gone
		}
		if err := os.WriteFile(path, []byte(o.known[name]), 0); err != nil {
			errs = append(errs, fmt.Errorf("set %s back to %s: %w", name, o.known[name], err))
			continue
		}
		written = append(written, name+" = "+o.known[name])
	}
	if err := errors.Join(errs...); err != nil {
		return written, err
	}
	return written, durable.Remove(file)
}
