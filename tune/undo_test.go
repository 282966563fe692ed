package tune

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// snapshot is all settings of a machine: files and cards.
func snapshot(t *testing.T, m *Machine) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(m.Root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		all[path] = fields(string(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(all, m.Devices.(cards))
	return all
}

func write(t *testing.T, m *Machine, path, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(m.Root, path), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Whatever profiles were applied, and how often, what was there first comes back.
func TestApplyRevert(t *testing.T) {
	m := machine(t, map[string]string{"sys/kernel/debug/sched/preempt": "full\n"})
	undo := filepath.Join(t.TempDir(), UndoFile)
	before := snapshot(t, m)
	for _, p := range []Profile{Throughput, Latency, Latency, Throughput} {
		written, err := Apply(m, List(m, p), undo)
		const refused = "nic adaptive-rx of eth0: set eth0 adaptive-rx"
		if p == Throughput && (err == nil || !strings.Contains(err.Error(), refused)) {
			t.Errorf("%s: a setting that the driver refuses: %v", p, err)
		}
		for _, e := range written {
			if now, err := m.store(e.Kind).Read(e.Key); err != nil || now != e.Recommended {
				t.Errorf("%s: %s is %q: %v", p, e.Key, now, err)
			}
		}
		for _, line := range differing(m, p) {
			if !strings.Contains(line, "adaptive-rx") && !strings.HasPrefix(line, "kernel") &&
				!strings.HasPrefix(line, "mtu") && !strings.HasPrefix(line, "qdisc qdisc of eth0") {
				t.Errorf("%s: still %s", p, line)
			}
		}
	}
	restored, left, err := Revert(m, undo)
	if err != nil || len(left) > 0 || len(restored) == 0 {
		t.Errorf("restored %q, left %q: %v", restored, left, err)
	}
	if after := snapshot(t, m); !maps.Equal(before, after) {
		for key, was := range before {
			if after[key] != was {
				t.Errorf("%s is %q, was %q", key, after[key], was)
			}
		}
	}
	if _, err := os.Stat(undo); !os.IsNotExist(err) {
		t.Errorf("the file of undo is left: %v", err)
	}
	if restored, left, err := Revert(m, undo); err != nil || len(restored)+len(left) > 0 {
		t.Errorf("again: restored %q, left %q: %v", restored, left, err)
	}
}

// ignoring is a card that takes any value and changes none.
type ignoring struct{ cards }

func (ignoring) Write(string, string) error { return nil }

func TestIgnoredValue(t *testing.T) {
	m := machine(t, nil)
	m.Devices = ignoring{m.Devices.(cards)}
	undo := filepath.Join(t.TempDir(), UndoFile)
	_, err := Apply(m, List(m, Throughput), undo)
	if err == nil || !strings.Contains(err.Error(), `eth0 gro stays off: the machine does not take "on"`) {
		t.Errorf("a value that the card ignores: %v", err)
	}
	if data, err := os.ReadFile(undo); err != nil || strings.Contains(string(data), "gro") {
		t.Errorf("it is in the file of undo: %v\n%s", err, data)
	}
}

// Others change a setting after it was written, and a device disappears.
func TestRevertLeavesOthersChanges(t *testing.T) {
	m := machine(t, nil)
	undo := filepath.Join(t.TempDir(), UndoFile)
	_, _ = Apply(m, List(m, Throughput), undo)
	write(t, m, "proc/sys/net/core/rmem_max", "5\n")
	delete(m.Devices.(cards), "eth0 gro")
	_, left, err := Revert(m, undo)
	if err != nil || len(left) != 1 || !strings.Contains(left[0], `rmem_max is "5"`) ||
		!strings.Contains(left[0], `before: "212992"`) {
		t.Errorf("left %q: %v", left, err)
	}
	if got, err := (files{m.Root}).Read("/proc/sys/net/core/rmem_max"); err != nil || got != "5" {
		t.Errorf("rmem_max is %q: %v", got, err)
	}
}

func TestBrokenUndoFile(t *testing.T) {
	m := machine(t, nil)
	undo := filepath.Join(t.TempDir(), UndoFile)
	if err := os.WriteFile(undo, []byte("[{"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, m)
	if _, err := Apply(m, List(m, Throughput), undo); err == nil {
		t.Error("applied without a way back")
	}
	if _, _, err := Revert(m, undo); err == nil {
		t.Error("reverted by a broken file")
	}
	if !maps.Equal(before, snapshot(t, m)) {
		t.Error("something was written")
	}
}
