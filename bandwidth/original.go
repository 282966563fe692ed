package bandwidth

import (
	"fmt"
	"maps"

	"myelin/internal/durable"
)

// OriginalsFile is the name of the file of originals, in the agent's run directory.
const OriginalsFile = "congestion.json"

// hostKey is the node's own network namespace in it.
const hostKey = "node"

// originals are kernel parameters as they were before they were changed, by network namespace and name, in a file.
type originals struct {
	*durable.Map[map[string]string]
}

func openOriginals(file string) (*originals, error) {
	known, err := durable.OpenMap[map[string]string](file)
	if err != nil {
		return nil, fmt.Errorf("congestion control of before: %w", err)
	}
	return &originals{known}, nil
}

// of returns what a parameter was, empty: it is not known.
func (o *originals) of(space, name string) string {
	known, _ := o.Get(space)
	return known[name]
}

// has reports whether anything is known of a namespace.
func (o *originals) has(space string) bool {
	known, _ := o.Get(space)
	return len(known) > 0
}

// keep writes down what a parameter was, once.
func (o *originals) keep(space, name, value string) error {
	return o.change(func(known map[string]map[string]string) bool {
		if _, ok := known[space][name]; ok {
			return false
		}
		next := map[string]string{name: value}
		maps.Copy(next, known[space])
		known[space] = next
		return true
	})
}

// forget removes parameters of a namespace.
func (o *originals) forget(space string, names ...string) error {
	return o.change(func(known map[string]map[string]string) bool {
		rest := maps.Clone(known[space])
		for _, name := range names {
			delete(rest, name)
		}
		changed := len(rest) < len(known[space])
		if known[space] = rest; len(rest) == 0 {
			delete(known, space)
		}
		return changed
	})
}

// only removes all namespaces but some.
func (o *originals) only(keep map[string]bool) error {
	return o.change(func(known map[string]map[string]string) bool {
		before := len(known)
		maps.DeleteFunc(known, func(space string, _ map[string]string) bool { return !keep[space] })
		return len(known) < before
	})
}

// remove forgets all.
func (o *originals) remove() error { return o.only(nil) }

func (o *originals) change(change func(map[string]map[string]string) bool) error {
	if err := o.Change(change); err != nil {
		return fmt.Errorf("keep congestion control of before: %w", err)
	}
	return nil
}
