package config

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// devices is a list, or text with commas or blanks between names, as in Helm.
func devices(key string, at func(*Config) *[]string) setting {
	return unique(key, at, checkDevice, deviceName, "devices")
}

// objectNames are names of Kubernetes objects.
func objectNames(key string, at func(*Config) *[]string) setting {
	return unique(key, at, checkName, objectName, "names of Kubernetes objects")
}

// someOf are some of what there is to choose from.
func someOf(key string, at func(*Config) *[]string, choices ...string) setting {
	return unique(key, at, func(s string) error {
		if !slices.Contains(choices, s) {
			return fmt.Errorf("%q is none of %s", s, strings.Join(choices, ", "))
		}
		return nil
	}, strings.Join(choices, "|"), strings.Join(choices, ", "))
}

// checkClusterName wants what Cilium does: a DNS label of 1 to 32 characters.
func checkClusterName(s string) error {
	if len(s) > 32 {
		return fmt.Errorf("%q is longer than 32 characters", s)
	}
	for _, reason := range validation.IsDNS1123Label(s) {
		return fmt.Errorf("%q: %s", s, reason)
	}
	return nil
}

// unique is a list of texts that are all different; one is the regular expression of one of them, want what they are.
func unique(key string, at func(*Config) *[]string, check func(string) error, one, want string) setting {
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
		texts(one, want),
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
