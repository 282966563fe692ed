package route

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"myelin/internal/durable"
)

// OriginalsFile is the name of the agent's file of originals, in its run directory.
const OriginalsFile = "sysctls.json"

// originals are kernel parameters as they were before the first agent wrote them, by name below /proc/sys, kept in a
// file, so that they can be put back when Myelin goes. What belongs to a pod link goes with the link, and is not kept.
type originals struct{ *durable.Map[string] }

func openOriginals(file string) (*originals, error) {
	known, err := durable.OpenMap[string](file)
	if err != nil {
		return nil, fmt.Errorf("kernel parameters of before: %w", err)
	}
	return &originals{known}, nil
}

// keep writes down what a parameter was, once.
func (o *originals) keep(name, value string) error {
	if o == nil || strings.HasPrefix(sysctlDevice(name), PodPrefix) {
		return nil
	}
	err := o.Change(func(known map[string]string) bool {
		if _, ok := known[name]; ok {
			return false
		}
		known[name] = value
		return true
	})
	if err != nil {
		return fmt.Errorf("keep what it was: %w", err)
	}
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
	known := o.All()
	names := slices.SortedFunc(maps.Keys(known), func(a, b string) int {
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
		if err := os.WriteFile(path, []byte(known[name]), 0); err != nil {
			errs = append(errs, fmt.Errorf("set %s back to %s: %w", name, known[name], err))
			continue
		}
		written = append(written, name+" = "+known[name])
	}
	if err := errors.Join(errs...); err != nil {
		return written, err
	}
	return written, durable.Remove(file)
}
