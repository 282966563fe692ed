package node

import (
	"fmt"
	"strings"

	"myelin/doctor/check"
)

// checkSysctls checks kernel parameters. Those that the agent sets itself are no fault before it has run.
func checkSysctls(m *check.Machine) {
	forwarding(m)
	reversePath(m)
	ipv6Off(m)
	if v, ok := m.Sysctl("net/bridge/bridge-nf-call-iptables"); ok && v == "1" {
		m.Info("net.bridge.bridge-nf-call-iptables is 1",
			"packets that cross a bridge on the node pass its iptables rules as well",
			"set it to 0 unless something else on the node needs it")
	}
}

func forwarding(m *check.Machine) {
	for _, s := range []struct {
		on         bool
		name, path string
	}{
		{m.Config.IPv4.Enabled, "net.ipv4.ip_forward", "net/ipv4/ip_forward"},
		{m.Config.IPv6.Enabled, "net.ipv6.conf.all.forwarding", "net/ipv6/conf/all/forwarding"},
	} {
		if !s.on {
			continue
		}
		v, ok := m.Sysctl(s.path)
		switch {
		case !ok:
			m.Fail(s.name+" can't be read",
				"the family is on in the configuration, and the kernel seems not to have it",
				"switch the family off in the configuration")
		case v != "0":
			m.OK("%s is %s", s.name, v)
		case !m.Agent:
			m.Info(s.name+" is 0", "packets of pods are not forwarded", "the agent sets it to 1")
		default:
			m.Fail(s.name+" is 0", "packets of pods are not forwarded; something has changed it after the agent",
				"find out what sets it, in /etc/sysctl.d for instance")
		}
	}
}

// reversePath: for the kernel, the larger value of all and of the device counts
// (Documentation/networking/ip-sysctl.rst), and 1 is strict.
func reversePath(m *check.Machine) {
	if !m.Config.IPv4.Enabled {
		return
	}
	var wires, pods []string
	for _, l := range m.Pods {
		if name := l.Attrs().Name; strict(m, name) {
			pods = append(pods, name)
		}
	}
	for _, l := range m.Wires {
		if name := l.Attrs().Name; strict(m, name) {
			wires = append(wires, name)
		}
	}
	const do = "the agent sets net.ipv4.conf.all.rp_filter to 0, and the device's to 2 or 0; should it come back, " +
		"look into /etc/sysctl.d"
	if len(wires) > 0 {
		m.Warn("reverse path filtering is strict (rp_filter 1) on "+some(wires),
			"replies that come in by another device than the route to their sender are dropped without a trace", do)
	}
	if len(pods) > 0 {
		m.Warn("reverse path filtering is strict (rp_filter 1) on "+some(pods),
			"packets that the datapath leaves to the stack are dropped if the kernel thinks their sender elsewhere", do)
	}
	if len(wires)+len(pods) == 0 {
		m.OK("reverse path filtering is strict on no device of ours")
	}
}

// some names the first few of a list.
func some(list []string) string {
	const few = 3
	if more := len(list) - few; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:few], ", "), more)
	}
	return strings.Join(list, ", ")
}

func strict(m *check.Machine, device string) bool {
	all, _ := m.Sysctl("net/ipv4/conf/all/rp_filter")
	own, ok := m.Sysctl("net/ipv4/conf/" + device + "/rp_filter")
	return ok && max(all, own) == "1"
}

func ipv6Off(m *check.Machine) {
	if !m.Config.IPv6.Enabled {
		return
	}
	names := []string{"all"}
	for _, l := range m.Wires {
		names = append(names, l.Attrs().Name)
	}
	for _, n := range names {
		if v, ok := m.Sysctl("net/ipv6/conf/" + n + "/disable_ipv6"); ok && v == "1" {
			m.Fail("net.ipv6.conf."+n+".disable_ipv6 is 1",
				"ipv6.enabled is true, and the kernel takes no IPv6 packets there",
				"set it to 0, or ipv6.enabled to false")
		}
	}
}
