// Package results keeps what benchmarks and measuring tests found: a list in bench/results.json that every program
// merges its own numbers into, budgets that the numbers must keep, and the page BENCHMARKS.md made from both.
package results

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Result is one number and what it was measured against.
type Result struct {
	// Name is a path such as "vm/veth/rr": how it was measured, what was measured, the kind of traffic. Other
	// measurements have two parts, such as "agent/ready_s".
	Name string `json:"name"`
	// Value is in Unit.
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Baseline is node→node of the same run, in Unit; 0 when there is nothing to compare with.
	Baseline float64 `json:"baseline,omitempty"`
	// Ratio is Value divided by Baseline.
	Ratio float64 `json:"ratio,omitempty"`
	// Kernel is the release (uname -r) that the number was measured on.
	Kernel string `json:"kernel"`
}

// Against returns r with its baseline and ratio set. A baseline of 0 leaves both unset.
func (r Result) Against(baseline float64) Result {
	if baseline != 0 {
		r.Baseline, r.Ratio = baseline, r.Value/baseline
	}
	return r
}

// Kernel is the release of the running kernel, as uname -r prints it.
func Kernel() string {
	var uts unix.Utsname
	if unix.Uname(&uts) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(uts.Release[:])
}

// Load reads a list of results. A file that doesn't exist is an empty list.
func Load(path string) ([]Result, error) {
	var list []Result
	err := loadJSON(path, &list)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return list, err
}

// Record merges measured into the list at path: it replaces rows of the same name, keeps all others, and sorts by name.
// Results without a kernel get the running one. Programs that record at the same time don't lose each other's rows.
func Record(path string, measured []Result) error {
	unlock, err := lock(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("record results in %s: %w", path, err)
	}
	defer unlock()
	list, err := Load(path)
	if err != nil {
		return err
	}
	for _, r := range measured {
		if r.Name == "" {
			return fmt.Errorf("record results in %s: a result without a name: %+v", path, r)
		}
		if r.Kernel == "" {
			r.Kernel = Kernel()
		}
		list = slices.DeleteFunc(list, func(old Result) bool { return old.Name == r.Name })
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b Result) int { return strings.Compare(a.Name, b.Name) })
	return writeJSON(path, list)
}

func loadJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// writeJSON puts one row on a line, so that a change of one number is a diff of one line.
func writeJSON(path string, list []Result) error {
	var text strings.Builder
	text.WriteString("[")
	for i, r := range list {
		row, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("write %s: %s: %w", path, r.Name, err)
		}
		if i > 0 {
			text.WriteString(",")
		}
		text.WriteString("\n  ")
		text.Write(row)
	}
	text.WriteString("\n]\n")
	return replaceFile(path, []byte(text.String()))
}

func replaceFile(path string, data []byte) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, data, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// lock holds the folder, not the file: the file is replaced by rename, and a lock on it would stay with the old one.
func lock(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}
