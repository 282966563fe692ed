package parse

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"

	"myelin/cluster"
)

const (
	// maxLost bounds the fields that are left out one by one. An object with more
	// is not understood at all: decoders tell of 100 at most.
	maxLost = 64
	// maxPruned bounds how often an object is decoded anew without a field that
	// has another type.
	maxPruned = 16
)

// decode reads an object strictly, as cluster.Decode does, but reads on where a
// field is wrong. lost are the paths of the fields that are not in the object as
// they are in the text; the empty path is all of it.
func decode[T any](raw []byte) (object T, faults cluster.FieldErrors, lost []string) {
	note := func(more cluster.FieldErrors) {
		for _, f := range more {
			if !slices.Contains(lost, f.Field) {
				faults, lost = append(faults, f), append(lost, f.Field)
			}
		}
	}
	for range maxPruned {
		var next T
		more := cluster.Decode(raw, &next)
		if note(more); len(more) == 0 {
			return next, faults, lost
		}
		var again T
		if _, err := kjson.UnmarshalStrict(raw, &again); err == nil {
			if len(lost) > maxLost {
				lost = append(lost, "")
			}
			return next, faults, lost
		}
		// A value has another type than its field, and decoding has ended there.
		note(duplicates(raw))
		pruned, at, ok := without(raw, more[0].Field)
		if !ok {
			break
		}
		if !slices.Contains(lost, at) {
			lost = append(lost, at)
		}
		raw = pruned
	}
	var none T
	return none, faults, append(lost, "")
}

// duplicates are fields that are there twice.
func duplicates(raw []byte) (out cluster.FieldErrors) {
	var all any
	strict, err := kjson.UnmarshalStrict(raw, &all)
	if err != nil {
		return nil // it is no JSON: the caller has said so
	}
	for _, e := range strict {
		out = append(out, cluster.Fault(e))
	}
	return out
}

// without is a JSON object with null in the place of the value at a path, or of
// the nearest value around it that is there. at is the path of that.
func without(raw []byte, path string) (pruned []byte, at string, ok bool) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var all map[string]any
	if decoder.Decode(&all) != nil {
		return nil, "", false
	}
	at, clear := nearest(all, path)
	if clear == nil {
		return nil, "", false
	}
	clear()
	pruned, err := json.Marshal(all)
	return pruned, at, err == nil
}

// nearest finds the value at a path, or the innermost value on the way to it that
// is not null, and returns its path and a function that makes it null.
func nearest(all any, path string) (at string, clear func()) {
	value, rest := all, path
	for value != nil && rest != "" {
		var next any
		var set func()
		var step string
		switch v := value.(type) {
		case map[string]any:
			name := field(v, strings.TrimPrefix(rest, "."))
			if name == "" {
				return at, clear
			}
			step = strings.Repeat(".", len(rest)-len(strings.TrimPrefix(rest, "."))) + name
			next, set = v[name], func() { v[name] = nil }
		case []any:
			digits, _, _ := strings.Cut(strings.TrimPrefix(rest, "["), "]")
			i, err := strconv.Atoi(digits)
			if err != nil || i >= len(v) || i < 0 {
				return at, clear
			}
			step = "[" + digits + "]"
			next, set = v[i], func() { v[i] = nil }
		default:
			return at, clear
		}
		if next == nil {
			return at, clear
		}
		at, clear = at+step, set
		value, rest = next, rest[len(step):]
	}
	return at, clear
}

// field is the name, of those that an object has, that a path begins with: the
// longest one, for names may have dots.
func field(object map[string]any, path string) (longest string) {
	for name := range object {
		if _, ok := below(path, name); ok && len(name) > len(longest) {
			longest = name
		}
	}
	return longest
}
