package key

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

func Boolean[C any](name string, at func(*C) *bool) Key[C] {
	return newKey(name,
		func(c *C, v any) error {
			b, ok := v.(bool)
			if !ok {
				return fmt.Errorf("%s is not true or false", Show(v))
			}
			*at(c) = b
			return nil
		},
		func(c *C) string { return strconv.FormatBool(*at(c)) },
		Schema{"type": "boolean"},
	)
}

// BoolText is a boolean that Helm values often have in quotes.
func BoolText[C any](name string, at func(*C) *bool) Key[C] {
	s := Boolean(name, at)
	s.Schema = Schema{"enum": []any{true, false, "true", "false"}}
	set := s.Set
	s.Set = func(c *C, v any) error {
		if text, ok := v.(string); ok && (text == "true" || text == "false") {
			v = text == "true"
		}
		return set(c, v)
	}
	return s
}

func Text[C any](name string, at func(*C) *string) Key[C] {
	return Checked(name, at, noCheck, Schema{"type": "string"})
}

func noCheck(string) error { return nil }

// Checked is a string that a function checks.
func Checked[C any](name string, at func(*C) *string, check func(string) error, schema Schema) Key[C] {
	return newKey(name,
		func(c *C, v any) error {
			s, ok := v.(string)
			if !ok {
				return fmt.Errorf("%s is not text", Show(v))
			}
			if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
				return fmt.Errorf("%q holds control characters", s)
			}
			if err := check(s); err != nil {
				return err
			}
			*at(c) = s
			return nil
		},
		func(c *C) string { return *at(c) },
		schema,
	)
}

// OneOf is a string among values; notYet are values that Cilium has and that
// will come here.
func OneOf[C any](name string, at func(*C) *string, values []string, notYet ...string) Key[C] {
	return Checked(name, at, func(s string) error {
		switch {
		case slices.Contains(values, s):
			return nil
		case slices.Contains(notYet, s):
			return fmt.Errorf("not yet: %s; use %s", s, orList(values))
		}
		return fmt.Errorf("%q is not %s", s, orList(values))
	}, Schema{"enum": anyOf(values)})
}

func orList(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	return strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
}

func Path[C any](name string, at func(*C) *string) Key[C] {
	return Checked(name, at, CheckPath, Pattern("^/", "an absolute path"))
}

func CheckPath(s string) error {
	if !filepath.IsAbs(s) || s != filepath.Clean(s) {
		return fmt.Errorf("%q is not a clean absolute path", s)
	}
	return nil
}

func ObjectName[C any](name string, at func(*C) *string) Key[C] {
	return Checked(name, at, checkName, Pattern("^"+objectName+"$", "the name of a Kubernetes object"))
}

// checkName wants a name of a Kubernetes object.
func checkName(s string) error {
	if bad := validation.IsDNS1123Subdomain(s); len(bad) > 0 {
		return fmt.Errorf("%q: %s", s, strings.Join(bad, "; "))
	}
	return nil
}

// Bounds of map sizes, in entries, as in Cilium.
const (
	MinMapEntries = 1 << 10
	MaxMapEntries = 1 << 24
)

// MapSize is a number of entries.
func MapSize[C any](name string, at func(*C) *int) Key[C] {
	return Integer(name, at, MinMapEntries, MaxMapEntries)
}

func Integer[C any](name string, at func(*C) *int, low, high int64) Key[C] {
	return newKey(name,
		func(c *C, v any) error {
			n, err := Number(v, low, high)
			if err == nil {
				*at(c) = int(n)
			}
			return err
		},
		func(c *C) string { return strconv.Itoa(*at(c)) },
		whole(low, high),
	)
}

func Number(v any, low, high int64) (int64, error) {
	raw, ok := v.(json.Number)
	if !ok {
		return 0, fmt.Errorf("%s is not a number", Show(v))
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && (n < low || n > high):
		return 0, fmt.Errorf("%s is not in %d..%d", raw, low, high)
	case err != nil:
		return 0, fmt.Errorf("%q is not a whole number", raw)
	}
	return n, nil
}

func Ratio[C any](name string, at func(*C) *float64) Key[C] {
	return newKey(name,
		func(c *C, v any) error {
			raw, ok := v.(json.Number)
			if !ok {
				return fmt.Errorf("%s is not a number", Show(v))
			}
			f, err := raw.Float64()
			if err != nil || !(f >= 0 && f < 1) {
				return fmt.Errorf("%s is not in 0..1 (1 not in it)", raw)
			}
			*at(c) = f
			return nil
		},
		func(c *C) string { return strconv.FormatFloat(*at(c), 'g', -1, 64) },
		Schema{"type": "number", "minimum": 0, "exclusiveMaximum": 1},
	)
}

func Duration[C any](name string, at func(*C) *time.Duration, low, high time.Duration) Key[C] {
	return newKey(name,
		func(c *C, v any) error {
			s, ok := v.(string)
			if !ok {
				return fmt.Errorf("%s is not a duration such as \"5s\"", Show(v))
			}
			d, err := time.ParseDuration(s)
			if err != nil {
				return fmt.Errorf("%q is not a duration such as \"5s\"", s)
			}
			if d < low || d > high {
				return fmt.Errorf("%s is not in %s..%s", d, low, high)
			}
			*at(c) = d
			return nil
		},
		func(c *C) string { return at(c).String() },
		Pattern("^\\+?([0-9.]+(ns|us|µs|μs|ms|s|m|h))+$", "a duration such as 5s"),
	)
}

// Show is a value as its writer may recognise it, on one line, cut at 60 bytes.
func Show(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%T", v)
	}
	s := string(raw)
	if len(s) > 60 {
		s = strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}

// File is the path of a file, or nothing.
func File[C any](name string, at func(*C) *string) Key[C] {
	return Checked(name, at, func(s string) error {
		if s == "" {
			return nil
		}
		return CheckPath(s)
	}, Pattern("^(/.*)?$", "an absolute path, or nothing"))
}
