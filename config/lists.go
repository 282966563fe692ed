package config

import (
	"fmt"
	"slices"
	"strings"
)

// devices is a list, or text with commas or blanks between names, as in Helm.
func devices(key string, at func(*Config) *[]string) setting {
	return unique(key, at, checkDevice)
}

// objectNames are names of Kubernetes objects.
func objectNames(key string, at func(*Config) *[]string) setting {
	return unique(key, at, checkName)
}

// unique is a list of texts that are all different.
func unique(key string, at func(*Config) *[]string, check func(string) error) setting {
	return setting{key,
		func(c *Config, v any) error {
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
		func(c *Config) string { return strings.Join(*at(c), " ") },
	}
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
				return nil, fmt.Errorf("%s in the list is not text", show(item))
			}
			out = append(out, s)
		}
		return out, nil
	}
	return nil, fmt.Errorf("%s is not a list", show(v))
}
