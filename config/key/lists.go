package key

import (
	"fmt"
	"slices"
	"strings"
)

// Devices is a list, or text with commas or blanks between names, as in Helm.
func Devices[C any](name string, at func(*C) *[]string) Key[C] {
	return Unique(name, at, checkDevice, deviceName, "devices")
}

// ObjectNames are names of Kubernetes objects.
func ObjectNames[C any](name string, at func(*C) *[]string) Key[C] {
	return Unique(name, at, checkName, objectName, "names of Kubernetes objects")
}

// SomeOf are some of what there is to choose from.
func SomeOf[C any](name string, at func(*C) *[]string, choices ...string) Key[C] {
	return Unique(name, at, func(s string) error {
		if !slices.Contains(choices, s) {
			return fmt.Errorf("%q is none of %s", s, strings.Join(choices, ", "))
		}
		return nil
	}, strings.Join(choices, "|"), strings.Join(choices, ", "))
}

// Unique is a list of texts that are all different; one is the regular expression of one of them, want what they are.
func Unique[C any](name string, at func(*C) *[]string, check func(string) error, one, want string) Key[C] {
	return newKey(name,
		func(c *C, v any) error {
			names, err := stringList(v)
			if err != nil {
				return err
			}
			for i, n := range names {
				if err := check(n); err != nil {
					return err
				}
				if slices.Contains(names[:i], n) {
					return fmt.Errorf("%s stands twice in the list", n)
				}
			}
			*at(c) = names
			return nil
		},
		func(c *C) string { return strings.Join(*at(c), " ") },
		texts(one, want),
	)
}

func stringList(v any) ([]string, error) {
	switch v := v.(type) {
	case string:
		return strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' }), nil
	case []any:
		var out []string
		for _, item := range v {
			s, ok := item.(string)
			if !ok {
				return nil, fmt.Errorf("%s in the list is not text", Show(item))
			}
			out = append(out, s)
		}
		return out, nil
	}
	return nil, fmt.Errorf("%s is not a list", Show(v))
}

// Items are a list, or text with blanks between them: what they are made of has commas.
func Items[C any](name string, at func(*C) *[]string, check func([]string) error, want string) Key[C] {
	return newKey(name,
		func(c *C, v any) error {
			if text, ok := v.(string); ok {
				var words []any
				for _, w := range strings.Fields(text) {
					words = append(words, w)
				}
				v = words
			}
			list, err := stringList(v)
			if err == nil {
				err = check(list)
			}
			if err == nil {
				*at(c) = list
			}
			return err
		},
		func(c *C) string { return strings.Join(*at(c), " ") },
		Explained(Schema{"anyOf": []any{listOf(Schema{"type": "string", "minLength": 1}),
			Schema{"type": "string"}, Schema{"type": "null"}}}, "a list of "+want),
	)
}
