package key

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

func Port[C any](name string, at func(*C) *uint16, low int64) Key[C] {
	return newKey(name,
		func(c *C, v any) error {
			// k8sServicePort is often quoted in Helm values.
			if s, ok := v.(string); ok {
				if s == "" && low == 0 {
					s = "0"
				}
				v = json.Number(s)
			}
			n, err := Number(v, low, 65535)
			if err == nil {
				*at(c) = uint16(n)
			}
			return err
		},
		func(c *C) string { return strconv.Itoa(int(*at(c))) },
		Explained(Schema{"anyOf": []any{whole(low, 65535), Schema{"type": "string", "pattern": portText(low)}}},
			fmt.Sprintf("a port, %d to 65535", low)),
	)
}

func CIDR[C any](name string, at func(*C) *netip.Prefix, family string, is func(netip.Addr) bool) Key[C] {
	return newKey(name,
		func(c *C, v any) error {
			s, ok := v.(string)
			if !ok {
				return fmt.Errorf("%s is not a CIDR", Show(v))
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
		func(c *C) string {
			if p := *at(c); p.IsValid() {
				return p.String()
			}
			return ""
		},
		Pattern("^([0-9a-fA-F.:]+/[0-9]+)?$", "a CIDR of "+family),
	)
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

// CIDRs is a list of CIDRs of either family.
func CIDRs[C any](name string, at func(*C) *[]netip.Prefix) Key[C] {
	return newKey(name,
		func(c *C, v any) error {
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
		func(c *C) string { return strings.Trim(fmt.Sprint(*at(c)), "[]") },
		texts("[0-9a-fA-F.:]+/[0-9]+", "CIDRs"),
	)
}

func Ports[C any](name string, at func(*C) *PortRange) Key[C] {
	return newKey(name,
		func(c *C, v any) error {
			s, _ := v.(string)
			a, b, ok := strings.Cut(s, "-")
			first, err1 := strconv.ParseUint(a, 10, 16)
			last, err2 := strconv.ParseUint(b, 10, 16)
			switch {
			case !ok || err1 != nil || err2 != nil:
				return fmt.Errorf("%s is not a port range such as \"10000-29999\"", Show(v))
			case first < 1024 || last < first+255:
				return fmt.Errorf("%s must begin at 1024 or above and hold at least 256 ports", s)
			}
			*at(c) = PortRange{First: uint16(first), Last: uint16(last)}
			return nil
		},
		func(c *C) string { return at(c).String() },
		Pattern("^[0-9]+-[0-9]+$", "a range of ports such as 10000-29999"),
	)
}

// PortPair is a range of ports as Cilium writes it, with a comma.
func PortPair[C any](name string, at func(*C) *PortRange) Key[C] {
	return newKey(name,
		func(c *C, v any) error {
			s, _ := v.(string)
			a, b, ok := strings.Cut(s, ",")
			first, err1 := strconv.ParseUint(strings.TrimSpace(a), 10, 16)
			last, err2 := strconv.ParseUint(strings.TrimSpace(b), 10, 16)
			switch {
			case !ok || err1 != nil || err2 != nil:
				return fmt.Errorf("%s is not a range of ports such as \"30000,32767\"", Show(v))
			case first < 1 || last < first:
				return fmt.Errorf("%s must begin at 1 or above, and not end before it begins", s)
			}
			*at(c) = PortRange{First: uint16(first), Last: uint16(last)}
			return nil
		},
		func(c *C) string { return fmt.Sprintf("%d,%d", at(c).First, at(c).Last) },
		Pattern("^\\s*[0-9]+\\s*,\\s*[0-9]+\\s*$", "a range of ports such as 30000,32767"),
	)
}

func Device[C any](name string, at func(*C) *string) Key[C] {
	return Checked(name, at, func(s string) error {
		if s == "" {
			return nil
		}
		return checkDevice(s)
	}, Pattern(`^([^+/: \t*?!]{1,15}\+?)?$`, "a device, or the beginning of names and a +"))
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

func VLANs[C any](name string, at func(*C) *[]uint16) Key[C] {
	return newKey(name,
		func(c *C, v any) error {
			items, ok := v.([]any)
			if !ok {
				return fmt.Errorf("%s is not a list", Show(v))
			}
			var ids []uint16
			for _, item := range items {
				n, err := Number(item, 0, 4094)
				if err != nil {
					return err
				}
				ids = append(ids, uint16(n))
			}
			*at(c) = ids
			return nil
		},
		func(c *C) string { return strings.Trim(fmt.Sprint(*at(c)), "[]") },
		listOf(whole(0, 4094)),
	)
}

// CheckAddress wants an IP address without a zone, or nothing.
func CheckAddress(s string) error {
	if a, err := netip.ParseAddr(s); s != "" && (err != nil || a.Zone() != "") {
		return fmt.Errorf("%q is not an IP address such as 192.0.2.1 or 2001:db8::1", s)
	}
	return nil
}

func CheckListenAddress(s string) error {
	port, anywhere := strings.CutPrefix(s, ":")
	if !anywhere {
		at, err := netip.ParseAddrPort(s)
		if err == nil && at.Port() != 0 {
			return nil
		}
	} else if n, err := strconv.ParseUint(port, 10, 16); err == nil && n != 0 {
		return nil
	}
	return fmt.Errorf("%q is not an address and port such as 192.0.2.1:9882, or :9882", s)
}

// PortRange is a range of ports, both ends in it.
type PortRange struct{ First, Last uint16 }

// String is "first-last".
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Overlaps reports whether two ranges share a port.
func (r PortRange) Overlaps(o PortRange) bool { return r.First <= o.Last && r.Last >= o.First }
