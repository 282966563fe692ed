package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"myelin/doctor/check"
)

// chain is a chain of nftables; iptables-nft makes them, too.
type chain struct {
	family string
	table  string
	name   string
	base   bool // hooked into the way of packets
	hook   uint32
	drop   bool   // policy
	device string // of hooks into a device
}

// Numbers of linux/netfilter.h.
const (
	hookForward = 2 // NF_INET_FORWARD
	policyDrop  = 0 // NF_DROP
)

// netfilter looks for rules of others. Packets that eBPF host routing carries
// never meet them; those that go through the stack do.
func netfilter(m *check.Machine) {
	chains, err := listChains()
	if err != nil {
		m.Info("nftables chains are not known: "+err.Error(), "", "")
	}
	legacy := legacyTables(m)
	if len(chains) == 0 && len(legacy) == 0 && err == nil {
		m.OK("no netfilter rules")
	}
	if len(legacy) > 0 {
		rules(m, "iptables tables are loaded: "+strings.Join(legacy, ", "))
	}
	checkChains(m, chains)
	if v, ok := m.Sysctl("net/netfilter/nf_conntrack_count"); ok && v != "0" {
		text := "the kernel's connection tracking has " + v + " entries"
		if limit, ok := m.Sysctl("net/netfilter/nf_conntrack_max"); ok {
			text += " of " + limit
		}
		rules(m, text)
	}
}

// rules adds what matters more where packets go through the stack.
func rules(m *check.Machine, what string) {
	if m.Config.BPF.HostLegacyRouting {
		m.Warn(what, "bpf.hostLegacyRouting is true: each packet of a pod goes through them, at a cost in time",
			"set it to false, or remove what is not needed")
		return
	}
	m.Info(what, "packets of pods don't meet them with eBPF host routing, those of the host do", "")
}

// checkChains looks for chains that would stop pods, and for kube-proxy.
func checkChains(m *check.Machine, chains []chain) {
	proxy, cilium, base := 0, 0, 0
	for _, c := range chains {
		if strings.HasPrefix(c.name, "CILIUM_") {
			cilium++
		}
		if strings.HasPrefix(c.name, "KUBE-") || c.table == "kube-proxy" {
			proxy++
		}
		if !c.base {
			continue
		}
		base++
		if c.hook != hookForward || !c.drop || c.family == "arp" || c.device != "" {
			continue
		}
		level, why := check.Info, "packets of pods don't meet it with eBPF host routing; should they have to take the "+
			"stack, they are dropped unless a rule accepts them"
		if m.Config.BPF.HostLegacyRouting {
			level = check.Fail
			why = "bpf.hostLegacyRouting is true: packets of pods are dropped unless a rule accepts them"
		}
		m.Add(level, fmt.Sprintf("chain %s of table %s %s drops by default what is forwarded", c.name, c.family,
			c.table), why, "accept forwarding of the cluster's podCIDRs there")
	}
	if proxy > 0 {
		m.Info(fmt.Sprintf("kube-proxy has %d chains", proxy),
			"it translates Services for the host; packets of pods don't meet its rules with eBPF host routing",
			"set bpf.hostLegacyRouting to true while pods depend on kube-proxy")
	}
	if cilium > 0 {
		m.Warn(fmt.Sprintf("Cilium has %d chains", cilium),
			"they mark, masquerade and leave untracked what goes through the stack", check.CleanupCilium)
	}
	if base > 0 {
		rules(m, fmt.Sprintf("nftables has %d chains in the way of packets, %d in all", base, len(chains)))
	}
}

// legacyTables are those of x_tables in this network namespace.
func legacyTables(m *check.Machine) (list []string) {
	for _, f := range []struct{ file, prefix string }{{"net/ip_tables_names", ""}, {"net/ip6_tables_names", "IPv6 "}} {
		data, err := os.ReadFile(filepath.Join(m.Proc, f.file))
		if err != nil {
			continue
		}
		for _, name := range strings.Fields(string(data)) {
			list = append(list, f.prefix+name)
		}
	}
	return list
}

// listChains asks nftables for its chains, without their rules. A kernel without
// it has none.
func listChains() ([]chain, error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	messages, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	var list []chain
	for _, m := range messages {
		if c, ok := parseChain(m); ok {
			list = append(list, c)
		}
	}
	return list, nil
}

func parseChain(m []byte) (c chain, ok bool) {
	if len(m) < nl.SizeofNfgenmsg {
		return c, false
	}
	c.family = map[byte]string{1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}[m[0]]
	attributes, err := parseAttributes(m[nl.SizeofNfgenmsg:])
	if err != nil {
		return c, false
	}
	for _, a := range attributes {
		switch a.Attr.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER) {
		case unix.NFTA_CHAIN_TABLE:
			c.table = unix.ByteSliceToString(a.Value)
		case unix.NFTA_CHAIN_NAME:
			c.name = unix.ByteSliceToString(a.Value)
		case unix.NFTA_CHAIN_POLICY:
			c.drop = len(a.Value) >= 4 && bigEndian(a.Value) == policyDrop
		case unix.NFTA_CHAIN_HOOK:
			c.base = true
			c.parseHook(a.Value)
		}
	}
	return c, true
}

// parseAttributes pads what it is given: the library walks past the end of a
// last attribute that is not.
func parseAttributes(b []byte) ([]syscall.NetlinkRouteAttr, error) {
	padded := make([]byte, (len(b)+3)&^3)
	copy(padded, b)
	return nl.ParseRouteAttr(padded)
}

func (c *chain) parseHook(data []byte) {
	attributes, err := parseAttributes(data)
	if err != nil {
		return
	}
	for _, a := range attributes {
		switch {
		case a.Attr.Type == unix.NFTA_HOOK_HOOKNUM && len(a.Value) >= 4:
			c.hook = bigEndian(a.Value)
		case a.Attr.Type == unix.NFTA_HOOK_DEV:
			c.device = unix.ByteSliceToString(a.Value)
		}
	}
}

func bigEndian(b []byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}
