package bandwidth

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"sync"

	"myelin/internal/durable"
)

// OriginalsFile is the name of the file of originals, in the agent's run directory.
const OriginalsFile = "congestion.json"

// hostKey is the node's own network namespace in it.
const hostKey = "node"

// originals are kernel parameters as they were before BBR, by network namespace, in a file.
type originals struct {
	file string

	mu    sync.Mutex
	known map[string]map[string]string
}

// openOriginals reads the file; none is an empty one.
func openOriginals(file string) (*originals, error) {
	o := &originals{file: file, known: map[string]map[string]string{}}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &o.known)
	}
	if err != nil {
		return nil, fmt.Errorf("read congestion control of before from %s: %w", file, err)
	}
	return o, nil
}

// of returns what a parameter was, empty: it is not known.
func (o *originals) of(space, name string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known[space][name]
}

// has reports whether anything is known of a namespace.
func (o *originals) has(space string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.known[space]) > 0
}

// keep writes down what a parameter was, once.
func (o *originals) keep(space, name, value string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.known[space][name]; ok {
		return nil
	}
	next := maps.Clone(o.known)
	next[space] = maps.Clone(next[space])
	if next[space] == nil {
		next[space] = map[string]string{}
	}
	next[space][name] = value
	return o.save(next)
}

// forget removes a namespace.
func (o *originals) forget(space string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.known[space]; !ok {
		return nil
	}
	next := maps.Clone(o.known)
	delete(next, space)
	return o.save(next)
}

// only removes all other namespaces.
func (o *originals) only(keep map[string]bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	next := maps.Clone(o.known)
	maps.DeleteFunc(next, func(space string, _ map[string]string) bool { return !keep[space] })
	if len(next) == len(o.known) {
		return nil
	}
	return o.save(next)
}

func (o *originals) save(next map[string]map[string]string) error {
	data, err := json.MarshalIndent(next, "", "  ")
	if err == nil {
		err = durable.Write(o.file, append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("keep congestion control of before: %w", err)
	}
	o.known = next
	return nil
}

func (o *originals) remove() error {
	o.known = map[string]map[string]string{}
	return durable.Remove(o.file)
}
