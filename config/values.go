package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// The functions below make settings of each type: key, place in Config, bounds.

func boolean(key string, at func(*Config) *bool) setting {
	return setting{key,
		func(c *Config, v any) error {
			b, ok := v.(bool)
			if !ok {
				return fmt.Errorf("%s is not true or false", show(v))
			}
			*at(c) = b
			return nil
		},
		func(c *Config) string { return strconv.FormatBool(*at(c)) },
		Schema{"type": "boolean"},
	}
}

// boolText is a boolean that Helm values often have in quotes.
func boolText(key string, at func(*Config) *bool) setting {
	s := boolean(key, at)
	s.schema = Schema{"enum": []any{true, false, "true", "false"}}
	set := s.set
	s.set = func(c *Config, v any) error {
		if text, ok := v.(string); ok && (text == "true" || text == "false") {
			v = text == "true"
		}
		return set(c, v)
	}
	return s
}

func text(key string, at func(*Config) *string) setting {
	return checked(key, at, noCheck, Schema{"type": "string"})
}

func noCheck(string) error { return nil }

// checked is a string that a function checks.
func checked(key string, at func(*Config) *string, check func(string) error, schema Schema) setting {
	return setting{key,
		func(c *Config, v any) error {
			s, ok := v.(string)
			if !ok {
				return fmt.Errorf("%s is not text", show(v))
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
		func(c *Config) string { return *at(c) },
		schema,
	}
}

// oneOf is a string among values; notYet are values that Cilium has and that
// will come here.
func oneOf(key string, at func(*Config) *string, values []string, notYet ...string) setting {
	return checked(key, at, func(s string) error {
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

func path(key string, at func(*Config) *string) setting {
	return checked(key, at, checkPath, pattern("^/", "an absolute path"))
}

func checkPath(s string) error {
	if !filepath.IsAbs(s) || s != filepath.Clean(s) {
		return fmt.Errorf("%q is not a clean absolute path", s)
	}
	return nil
}

func nodeName(key string, at func(*Config) *string) setting {
	return checked(key, at, checkName, pattern("^"+objectName+"$", "the name of a Kubernetes object"))
}

// checkName wants a name of a Kubernetes object.
func checkName(s string) error {
	if bad := validation.IsDNS1123Subdomain(s); len(bad) > 0 {
		return fmt.Errorf("%q: %s", s, strings.Join(bad, "; "))
	}
	return nil
}

func device(key string, at func(*Config) *string) setting {
	return checked(key, at, func(s string) error {
		if s == "" {
			return nil
		}
		return checkDevice(s)
	}, pattern(`^([^+/: \t*?!]{1,15}\+?)?$`, "a device, or the beginning of names and a +"))
}

// checkDevice checks an interface name (IFNAMSIZ leaves 15 bytes), or the
// beginning of names and "+".
func checkDevice(s string) error {
	name := strings.TrimSuffix(s, "+")
	switch {
	case s == "" || s == "." || s == "..":
		return fmt.Errorf("%q is not a device name", s)
	case len(name) > 15:
		return fmt.Errorf("%q is longer than 15 bytes", s)
	case strings.ContainsAny(name, "+/: \t*?!"):
		return fmt.Errorf("%q is not a device name, or the beginning of names and a +", s)
	}
	return nil
}

func vlans(key string, at func(*Config) *[]uint16) setting {
	return setting{key,
		func(c *Config, v any) error {
			items, ok := v.([]any)
			if !ok {
				return fmt.Errorf("%s is not a list", show(v))
			}
			var ids []uint16
			for _, item := range items {
				n, err := number(item, 0, 4094)
				if err != nil {
					return err
				}
				ids = append(ids, uint16(n))
			}
			*at(c) = ids
			return nil
		},
		func(c *Config) string { return strings.Trim(fmt.Sprint(*at(c)), "[]") },
		listOf(whole(0, 4094)),
	}
}

func integer(key string, at func(*Config) *int, low, high int64) setting {
	return setting{key,
		func(c *Config, v any) error {
			n, err := number(v, low, high)
			if err == nil {
				*at(c) = int(n)
			}
			return err
		},
		func(c *Config) string { return strconv.Itoa(*at(c)) },
		whole(low, high),
	}
}

func port(key string, at func(*Config) *uint16, low int64) setting {
	return setting{key,
		func(c *Config, v any) error {
			// k8sServicePort is often quoted in Helm values.
			if s, ok := v.(string); ok {
				if s == "" && low == 0 {
					s = "0"
				}
				v = json.Number(s)
			}
			n, err := number(v, low, 65535)
			if err == nil {
				*at(c) = uint16(n)
			}
			return err
		},
		func(c *Config) string { return strconv.Itoa(int(*at(c))) },
		explained(Schema{"anyOf": []any{whole(low, 65535), Schema{"type": "string", "pattern": portText(low)}}},
			fmt.Sprintf("a port, %d to 65535", low)),
	}
}

func number(v any, low, high int64) (int64, error) {
	raw, ok := v.(json.Number)
	if !ok {
		return 0, fmt.Errorf("%s is not a number", show(v))
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

func ratio(key string, at func(*Config) *float64) setting {
	return setting{key,
		func(c *Config, v any) error {
			raw, ok := v.(json.Number)
			if !ok {
				return fmt.Errorf("%s is not a number", show(v))
			}
			f, err := raw.Float64()
			if err != nil || !(f >= 0 && f < 1) {
				return fmt.Errorf("%s is not in 0..1 (1 not in it)", raw)
			}
			*at(c) = f
			return nil
		},
		func(c *Config) string { return strconv.FormatFloat(*at(c), 'g', -1, 64) },
		Schema{"type": "number", "minimum": 0, "exclusiveMaximum": 1},
	}
}

func duration(key string, at func(*Config) *time.Duration, low, high time.Duration) setting {
	return setting{key,
		func(c *Config, v any) error {
			s, ok := v.(string)
			if !ok {
				return fmt.Errorf("%s is not a duration such as \"5s\"", show(v))
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
		func(c *Config) string { return at(c).String() },
		pattern("^\\+?([0-9.]+(ns|us|µs|μs|ms|s|m|h))+$", "a duration such as 5s"),
	}
}

func cidr(key string, at func(*Config) *netip.Prefix, family string, is func(netip.Addr) bool) setting {
	return setting{key,
		func(c *Config, v any) error {
			s, ok := v.(string)
			if !ok {
				return fmt.Errorf("%s is not a CIDR", show(v))
			}
			if s == "" {
				return nil
			}
			p, err := parseCIDR(s)
			if err != nil {
				return err
			}
			if !is(p.Addr()) {
				return fmt.Errorf("%s is not an %s CIDR", s, family)
			}
			*at(c) = p
			return nil
		},
		func(c *Config) string {
			if p := *at(c); p.IsValid() {
				return p.String()
			}
			return ""
		},
		pattern("^([0-9a-fA-F.:]+/[0-9]+)?$", "a CIDR of "+family),
	}
}

// parseCIDR wants one without bits after the prefix, and none of mapped addresses.
func parseCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil || p.Addr().Is4In6():
		return p, fmt.Errorf("%q is not a CIDR such as 10.0.0.0/8 or fd00::/48", s)
	case p != p.Masked():
		return p, fmt.Errorf("%s has bits set after the prefix: did you mean %s?", p, p.Masked())
	}
	return p, nil
}

// cidrs is a list of CIDRs of either family.
func cidrs(key string, at func(*Config) *[]netip.Prefix) setting {
	return setting{key,
		func(c *Config, v any) error {
			items, err := stringList(v)
			if err != nil {
				return err
			}
			list := make([]netip.Prefix, len(items))
			for i, item := range items {
				if list[i], err = parseCIDR(item); err != nil {
					return err
				}
			}
			*at(c) = list
			return nil
		},
		func(c *Config) string { return strings.Trim(fmt.Sprint(*at(c)), "[]") },
		texts("[0-9a-fA-F.:]+/[0-9]+", "CIDRs"),
	}
}

func portRange(key string, at func(*Config) *PortRange) setting {
	return setting{key,
		func(c *Config, v any) error {
			s, _ := v.(string)
			a, b, ok := strings.Cut(s, "-")
			first, err1 := strconv.ParseUint(a, 10, 16)
			last, err2 := strconv.ParseUint(b, 10, 16)
			switch {
			case !ok || err1 != nil || err2 != nil:
				return fmt.Errorf("%s is not a port range such as \"10000-29999\"", show(v))
			case first < 1024 || last < first+255:
				return fmt.Errorf("%s must begin at 1024 or above and hold at least 256 ports", s)
			}
			*at(c) = PortRange{First: uint16(first), Last: uint16(last)}
			return nil
		},
		func(c *Config) string { return at(c).String() },
		pattern("^[0-9]+-[0-9]+$", "a range of ports such as 10000-29999"),
	}
}

// portPair is a range of ports as Cilium writes it, with a comma.
func portPair(key string, at func(*Config) *PortRange) setting {
	return setting{key,
		func(c *Config, v any) error {
			s, _ := v.(string)
			a, b, ok := strings.Cut(s, ",")
			first, err1 := strconv.ParseUint(strings.TrimSpace(a), 10, 16)
			last, err2 := strconv.ParseUint(strings.TrimSpace(b), 10, 16)
			switch {
			case !ok || err1 != nil || err2 != nil:
				return fmt.Errorf("%s is not a range of ports such as \"30000,32767\"", show(v))
			case first < 1 || last < first:
				return fmt.Errorf("%s must begin at 1 or above, and not end before it begins", s)
			}
			*at(c) = PortRange{First: uint16(first), Last: uint16(last)}
			return nil
		},
		func(c *Config) string { return fmt.Sprintf("%d,%d", at(c).First, at(c).Last) },
		pattern("^\\s*[0-9]+\\s*,\\s*[0-9]+\\s*$", "a range of ports such as 30000,32767"),
	}
}

// show is a value as its writer may recognise it, on one line, cut at 60 bytes.
func show(v any) string {
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
