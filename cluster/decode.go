package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
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
			f.Field = e.Field
			// Types with a decoder of their own have offsets of their own too.
			if at := fieldAt(raw, e.Offset); strings.HasPrefix(written(at), written(e.Field)) {
				f.Field = at
			}
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

// written is a path without places in lists and without the names of Go's
// embedded types.
func written(field string) string {
	return regexp.MustCompile(`\[\d+\]|\b[A-Z]\w*\.`).ReplaceAllString(field, "")
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
			return FieldError{Reason: "is " + article(e.Value) + ", not an object"}
		}
		return FieldError{Field: e.Field, Reason: fmt.Sprintf("%s can't be %s", article(e.Value),
			article(typeName(e.Type)))}
	}
	if e, ok := errors.AsType[kjson.FieldError](err); ok {
		reason, _, _ := strings.Cut(e.Error(), " \"")
		return FieldError{Field: e.FieldPath(), Reason: reason}
	}
	return FieldError{Reason: err.Error()}
}

// typeName is what a Go type is called in JSON.
func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return "list"
	case reflect.Struct, reflect.Map:
		return "object"
	}
	return t.String()
}

// article puts the article before a word.
func article(word string) string {
	if strings.ContainsRune("aeiou", rune(word[0])) {
		return "an " + word
	}
	return "a " + word
}

// Read decodes a JSON object as Decode does, and makes a row of it. There is a
// row or an error, which has all that is wrong by field.
func Read[T, R any](raw []byte, convert func(*T) (*R, error)) (*R, FieldErrors) {
	var object T
	if faults := Decode(raw, &object); len(faults) > 0 {
		return nil, faults
	}
	row, err := convert(&object)
	if err != nil {
		return nil, Faults(err)
	}
	return row, nil
}

// Faults are the fields that an error of a conversion names.
func Faults(err error) FieldErrors {
	if err == nil {
		return nil
	}
	if fields, ok := errors.AsType[FieldErrors](err); ok {
		return fields
	}
	return FieldErrors{{Reason: err.Error()}}
}
