// Package tune compares settings of a machine with those that suit the node's network, applies them on request, and
// restores what was there.
package tune

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// Profile is what a machine is tuned for.
type Profile string

// The profiles.
const (
	Throughput Profile = "throughput" // many bytes a second by few instructions
	Latency    Profile = "latency"    // short response times, at the cost of CPU time
)

// Profiles are all of them.
func Profiles() []string { return []string{string(Throughput), string(Latency)} }

// Kind is where a setting is.
type Kind string

// The kinds.
const (
	File    Kind = "file"    // the key is a path
	Ethtool Kind = "ethtool" // the key is "DEVICE SETTING"
	Manual  Kind = "manual"  // only people can change it: it needs a reboot, other machines, or another program
)

// Entry is one setting.
type Entry struct {
	Area        string `json:"area"`
	Name        string `json:"name"`
	Kind        Kind   `json:"kind"`
	Key         string `json:"key,omitempty"`
	Current     string `json:"current"`
	Recommended string `json:"recommended"`
	Reason      string `json:"reason"`
	Effect      string `json:"effect"` // that is expected
	// Do and Undo are what sets what is recommended, and what is there now: commands, except for some settings of kind
	// Manual. Both are empty if nothing has to change.
	Do   string `json:"do,omitempty"`
	Undo string `json:"undo,omitempty"`
}

// Differs reports whether the setting is not as recommended.
func (e *Entry) Differs() bool { return e.Current != e.Recommended }

// Store reads and writes settings of one kind.
type Store interface {
	// Read returns a value. The error is fs.ErrNotExist if the machine has no such setting.
	Read(key string) (string, error)
	Write(key, value string) error
	// Command is what a shell does to write the value.
	Command(key, value string) string
}

// Machine is what is tuned.
type Machine struct {
	// Root is "/" but in tests; proc and sys are below it.
	Root string
	// Wires are the names of devices that lead to other nodes.
	Wires []string
	// Devices are the network cards.
	Devices Store
	// Release is that of the kernel, as uname(2) says.
	Release string
}

func (m *Machine) store(k Kind) Store {
	if k == Ethtool {
		return m.Devices
	}
	return files{m.Root}
}

// list collects entries.
type list struct {
	*Machine
	profile Profile
	area    string
	entries []Entry
}

// List returns all settings that the machine has, with what the profile recommends.
func List(m *Machine, p Profile) []Entry {
	l := &list{Machine: m, profile: p}
	for _, a := range []struct {
		name string
		add  func()
	}{
		{"cpu", l.cpu}, {"kernel", l.kernel}, {"irq", l.interrupts}, {"queues", l.queues}, {"nic", l.cards},
		{"qdisc", l.qdisc}, {"mtu", l.mtu}, {"tcp", l.tcp},
	} {
		l.area = a.name
		a.add()
	}
	return l.entries
}

// text is why something is recommended, and what it brings.
type text struct{ reason, effect string }

// want adds a setting. recommend returns what it should be of what it is; empty: what it is.
func (l *list) want(k Kind, name, key string, recommend func(current string) string, t text) {
	s := l.store(k)
	current, err := s.Read(key)
	if err != nil {
		return // the machine does not have it, or does not show it
	}
	e := Entry{Area: l.area, Name: name, Kind: k, Key: key, Current: current, Recommended: recommend(current),
		Reason: t.reason, Effect: t.effect}
	if e.Recommended == "" {
		e.Recommended = current
	}
	if e.Differs() {
		e.Do, e.Undo = s.Command(key, e.Recommended), s.Command(key, current)
	}
	l.entries = append(l.entries, e)
}

// manual adds a setting that tune does not write.
func (l *list) manual(name, current, recommended, do, undo string, t text) {
	e := Entry{Area: l.area, Name: name, Kind: Manual, Current: current, Recommended: recommended, Reason: t.reason,
		Effect: t.effect}
	if e.Differs() {
		e.Do, e.Undo = do, undo
	}
	l.entries = append(l.entries, e)
}

// always recommends one value.
func always(value string) func(string) string { return func(string) string { return value } }

// by recommends a value by profile; empty: what is there.
func (l *list) by(throughput, latency string) func(string) string {
	if l.profile == Latency {
		return always(latency)
	}
	return always(throughput)
}

// read reads a file below the root; empty if there is none.
func (l *list) read(path string) string {
	value, err := (files{l.Root}).Read(path)
	if err != nil {
		return ""
	}
	return value
}

// Apply writes the settings that differ from what is recommended, and keeps what was there in the file of undo first.
// It returns what it wrote. Settings that can't be written are errors; the others are written.
func Apply(m *Machine, entries []Entry, undo string) (written []Entry, err error) {
	u, err := openUndo(undo)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		if e.Kind == Manual || !e.Differs() {
			continue
		}
		if err := u.write(m.store(e.Kind), e); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", e.Area, e.Name, err))
			continue
		}
		written = append(written, e)
	}
	return written, errors.Join(errs...)
}

// missing reports whether the machine does not have a setting.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// fields is text with one space between words: as the kernel takes values, and unlike it prints some.
func fields(s string) string { return strings.Join(strings.Fields(s), " ") }
