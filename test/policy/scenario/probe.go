package scenario

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"myelin/test/policy/reference"
)

// Probe is one flow that is tried, by one family.
type Probe struct {
	// Line is the line of the scenario that it is from, as it is written.
	Line string
	// From and To are "namespace/name" of pods, "node/NAME", or "world/NAME".
	From, To string
	// Probe has the addresses that the cluster's YAML gives both.
	reference.Probe
	// Allow: it must come through.
	Allow bool
}

// String is as in "x/a -> v/b TCP/80 allow IPv4", whatever the line is.
func (p Probe) String() string {
	return fmt.Sprintf("%s -> %s %s %s %s", p.From, p.To, layer4(p.Probe), verdict(p.Allow), family(p.Src))
}

func verdict(allow bool) string {
	if allow {
		return "allow"
	}
	return "deny"
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

func layer4(p reference.Probe) string {
	for name, number := range protocols() {
		if number == p.Proto {
			return fmt.Sprintf("%s/%d", name, p.Port)
		}
	}
	return fmt.Sprintf("%d/%d", p.Proto, p.Port)
}

func protocols() map[string]uint8 {
	return map[string]uint8{"ICMP": 1, "TCP": 6, "UDP": 17, "ICMPv6": 58, "SCTP": 132}
}

// Outside are the hosts outside of the cluster, with their addresses.
func Outside() map[string][]netip.Addr {
	return map[string][]netip.Addr{
		"world/one": {netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:64::1")},
		"world/two": {netip.MustParseAddr("203.0.113.2"), netip.MustParseAddr("2001:db8:113::2")},
	}
}

// Places are all that probes can go between, with their addresses: pods that are
// not on the host's network, nodes, and those outside.
func Places(w *reference.World) map[string][]netip.Addr {
	places := Outside()
	for _, pod := range w.Pods {
		if pod.Spec.HostNetwork {
			continue
		}
		for _, ip := range pod.Status.PodIPs {
			name := pod.Namespace + "/" + pod.Name
			places[name] = append(places[name], netip.MustParseAddr(ip.IP))
		}
	}
	for _, node := range w.Nodes {
		for _, a := range node.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil {
				places["node/"+node.Name] = append(places["node/"+node.Name], addr)
			}
		}
	}
	return places
}

// parseProbes reads lines "FROM -> TO PORTS allow|deny [FAMILY]". FROM and TO are
// places, with * for any part, and several by comma; PORTS are PROTO/PORT, ICMP/TYPE
// or ICMPv6/TYPE, or "echo" for what ping sends in either family. A line stands for
// each pair that it names, but of a place and itself, or two outside.
func parseProbes(text string, w *reference.World) ([]Probe, error) {
	var all []Probe
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		probes, err := parseProbe(fields, w)
		if err == nil && len(probes) == 0 {
			err = fmt.Errorf("stands for nothing")
		}
		if err != nil {
			return nil, fmt.Errorf("probes line %d: %q: %w", i+1, line, err)
		}
		all = append(all, probes...)
	}
	return all, nil
}

func parseProbe(fields []string, w *reference.World) ([]Probe, error) {
	if len(fields) < 5 || len(fields) > 6 || fields[1] != "->" || fields[4] != "allow" && fields[4] != "deny" {
		return nil, fmt.Errorf("not FROM -> TO PORTS allow|deny [FAMILY]")
	}
	places := Places(w)
	from, err1 := match(fields[0], places)
	to, err2 := match(fields[2], places)
	ports, err3 := parsePorts(fields[3])
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return nil, err
		}
	}
	var all []Probe
	for _, src := range from {
		for _, dst := range to {
			if src == dst || strings.HasPrefix(src, "world/") && strings.HasPrefix(dst, "world/") {
				continue
			}
			for _, p := range pairs(places[src], places[dst], ports) {
				if len(fields) < 6 || family(p.Src) == fields[5] {
					all = append(all, Probe{strings.Join(fields, " "), src, dst, p, fields[4] == "allow"})
				}
			}
		}
	}
	return all, nil
}

func match(patterns string, places map[string][]netip.Addr) ([]string, error) {
	var names []string
	for _, pattern := range strings.Split(patterns, ",") {
		found := false
		for name := range places {
			if ok, err := path.Match(pattern, name); err != nil || !ok || pattern[0] == '*' && !pod(name) {
				continue
			}
			found = true
			names = append(names, name)
		}
		if !found {
			return nil, fmt.Errorf("no place %q", pattern)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func pod(place string) bool {
	return !strings.HasPrefix(place, "node/") && !strings.HasPrefix(place, "world/")
}

// parsePorts reads protocols and ports. ICMP is for IPv4, ICMPv6 for IPv6.
func parsePorts(text string) ([]reference.Probe, error) {
	var all []reference.Probe
	for _, one := range strings.Split(text, ",") {
		if one == "echo" {
			all = append(all, reference.Probe{Proto: 1, Port: 8}, reference.Probe{Proto: 58, Port: 128})
			continue
		}
		name, number, _ := strings.Cut(one, "/")
		proto, known := protocols()[name]
		port, err := strconv.ParseUint(number, 10, 16)
		if !known || err != nil {
			return nil, fmt.Errorf("%q is not PROTO/PORT", one)
		}
		all = append(all, reference.Probe{Proto: proto, Port: uint16(port)})
	}
	return all, nil
}

// pairs are the probes between addresses of one family.
func pairs(from, to []netip.Addr, ports []reference.Probe) []reference.Probe {
	var all []reference.Probe
	for _, src := range from {
		for _, dst := range to {
			for _, p := range ports {
				if src.Is4() == dst.Is4() && !(p.Proto == 1 && !src.Is4() || p.Proto == 58 && src.Is4()) {
					all = append(all, reference.Probe{Src: src, Dst: dst, Proto: p.Proto, Port: p.Port})
				}
			}
		}
	}
	return all
}
