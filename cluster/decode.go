package cluster

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	kjson "sigs.k8s.io/json"
)

// Decode reads a JSON object into a pointer, strictly: an unknown field, one
// that is there twice, one of another type, and a null in a list, which would
// be as good as an empty item, are errors. Names are case-sensitive, as the API
// server has it.
func Decode(raw []byte, into any) FieldErrors {
	strict, err := kjson.UnmarshalStrict(raw, into)
	if err != nil {
		f := Fault(err)
		if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
			f.Field = cmp.Or(fieldAt(raw, e.Offset), e.Field)
		}
		return FieldErrors{f}
	}
	var faults FieldErrors
	for _, e := range strict {
		faults = append(faults, Fault(e))
	}
	if bytes.Contains(raw, []byte("null")) {
		var all any
		if json.Unmarshal(raw, &all) == nil {
			faults = append(faults, nulls(all, "")...)
		}
	}
	return faults
}

// fieldAt is the path of what ends at an offset of a JSON text. The error has
// a path too, but without places in lists, and with Go's names of embedded types.
func fieldAt(raw []byte, offset int64) string {
	type level struct {
		list, key bool // key: the next token is a field's name
		name      string
		place     int
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	var open []level
	for {
		token, err := dec.Token()
		if err != nil {
			return ""
		}
		top := len(open) - 1
		name := top >= 0 && !open[top].list && open[top].key && token != json.Delim('}')
		if name {
			open[top].name, open[top].key = token.(string), false
		}
		if dec.InputOffset() >= offset {
			break
		}
		switch {
		case name:
			continue
		case token == json.Delim('{') || token == json.Delim('['):
			open = append(open, level{list: token == json.Delim('['), key: true})
			continue
		case token == json.Delim('}') || token == json.Delim(']'):
			open, top = open[:top], top-1
		}
		if top >= 0 {
			open[top].key = true
			open[top].place++
		}
	}
	at := ""
	for _, l := range open {
		if l.list {
			at = path(at, l.place)
		} else {
			at = path(at, l.name)
		}
	}
	return at
}

// nulls finds list items that are null. Their order is that of fields' names.
func nulls(value any, at string) FieldErrors {
	var faults FieldErrors
	switch v := value.(type) {
	case []any:
		for i, item := range v {
			if item == nil {
				faults = append(faults, FieldError{Field: path(at, i), Reason: "is null"})
				continue
			}
			faults = append(faults, nulls(item, path(at, i))...)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			faults = append(faults, nulls(v[name], path(at, name))...)
		}
	}
	return faults
}

// Fault finds the field of a decoding error of package sigs.k8s.io/json.
func Fault(err error) FieldError {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if e.Field == "" {
			return FieldError{Reason: "is a " + e.Value + ", not an object"}
		}
		return FieldError{Field: e.Field, Reason: fmt.Sprintf("a %s can't be a %s", e.Value, e.Type)}
	}
	if e, ok := errors.AsType[kjson.FieldError](err); ok {
		reason, _, _ := strings.Cut(e.Error(), " \"")
		return FieldError{Field: e.FieldPath(), Reason: reason}
	}
	return FieldError{Reason: err.Error()}
}
