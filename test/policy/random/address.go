package random

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// outside are addresses outside of the cluster; one is beside the nodes' own.
func outside(four bool) []netip.Addr {
	texts := []string{"2001:db8:1::1", "2001:db8:1::2", "2001:db8:1:8000::1", "2001:db8:2::7", "fd00:64::200",
		"2600::8"}
	if four {
		texts = []string{"203.0.113.1", "203.0.113.2", "203.0.113.129", "198.51.100.7", "192.168.64.200", "8.8.8.8"}
	}
	var addrs []netip.Addr
	for _, text := range texts {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	return addrs
}

func nodeAddress(node *corev1.Node, four bool) string {
	if four {
		return node.Status.Addresses[1].Address
	}
	return node.Status.Addresses[2].Address
}

// address is that of a pod, of a node, or one outside.
func (m *maker) address(four bool) netip.Addr {
	if m.odds(30) {
		return netip.MustParseAddr(nodeAddress(pick(m.r, m.w.Nodes), four))
	}
	if m.odds(50) {
		return pick(m.r, outside(four))
	}
	for range 8 {
		for _, ip := range pick(m.r, m.w.Pods).Status.PodIPs {
			if addr := netip.MustParseAddr(ip.IP); addr.Is4() == four {
				return addr
			}
		}
	}
	return pick(m.r, outside(four))
}

// lengths are those of prefixes: they nest, and cover all, some and one.
func lengths(four bool) []int {
	if four {
		return []int{0, 1, 8, 16, 24, 25, 31, 32, 32}
	}
	return []int{0, 3, 8, 32, 48, 49, 64, 127, 128, 128}
}

// prefix contains the address of a pod or node, or one outside, so that it matters.
func (m *maker) prefix() netip.Prefix {
	four := m.odds(50)
	return netip.PrefixFrom(m.address(four), pick(m.r, lengths(four))).Masked()
}

// far is a prefix around an address outside, in most cases: for what is about the
// outside alone.
func (m *maker) far() netip.Prefix {
	if m.odds(25) {
		return m.prefix()
	}
	four := m.odds(50)
	return netip.PrefixFrom(pick(m.r, outside(four)), pick(m.r, lengths(four))).Masked()
}

// spelled is a prefix as text, now and then as Kubernetes accepts it with a warning:
// with leading zeros, or IPv4-mapped.
func (m *maker) spelled(p netip.Prefix) string {
	if !p.Addr().Is4() || !m.odds(15) {
		return p.String()
	}
	if m.odds(50) {
		return fmt.Sprintf("::ffff:%s/%d", p.Addr(), 96+p.Bits())
	}
	a := p.Addr().As4()
	return fmt.Sprintf("%03d.%03d.%03d.%03d/%d", a[0], a[1], a[2], a[3], p.Bits())
}

// excepts are up to two prefixes within a prefix and smaller than it.
func (m *maker) excepts(p netip.Prefix) []string {
	var texts []string
	for range 8 {
		four := p.Addr().Is4()
		except := netip.PrefixFrom(m.address(four), pick(m.r, lengths(four))).Masked()
		if len(texts) < 2 && except.Bits() > p.Bits() && p.Contains(except.Addr()) {
			texts = append(texts, m.spelled(except))
		}
	}
	return texts
}
