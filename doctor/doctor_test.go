package doctor

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/agent"
	"myelin/bpf/hooks"
	"myelin/config"
	"myelin/doctor/check"
	"myelin/endpoint/nettest"
	"myelin/status"
)

// spoilt is one thing that is wrong with a node.
type spoilt struct {
	name  string
	spoil func(*testing.T, *node)
	level check.Level
	want  string // part of the finding
}

func allSpoilt() []spoilt { return append(spoiltNetwork(), spoiltByOthers()...) }

// spoiltNetwork are faults of kernel parameters, devices, their programs and MTUs.
func spoiltNetwork() []spoilt {
	return []spoilt{
		{"strict filter on a wire", func(t *testing.T, _ *node) {
			sysctl(t, "net/ipv4/conf/eth0/rp_filter", "1")
		}, check.Warn, "strict (rp_filter 1) on eth0"},
		{"strict filter for all", func(t *testing.T, _ *node) {
			sysctl(t, "net/ipv4/conf/all/rp_filter", "1")
		}, check.Warn, "strict (rp_filter 1) on mye00000001"},
		{"no forwarding, agent", func(t *testing.T, n *node) {
			sysctl(t, "net/ipv4/ip_forward", "0")
			n.options.Agent = n.report()
		}, check.Fail, "net.ipv4.ip_forward is 0"},
		{"no forwarding, no agent", func(t *testing.T, _ *node) {
			sysctl(t, "net/ipv4/ip_forward", "0")
		}, check.Info, "net.ipv4.ip_forward is 0"},
		{"IPv6 off", func(t *testing.T, _ *node) {
			sysctl(t, "net/ipv6/conf/eth0/disable_ipv6", "1")
		}, check.Fail, "eth0.disable_ipv6 is 1"},
		{"foreign TCX program", foreignTCX, check.Warn, "another program on eth0: intruder (id "},
		{"foreign clsact filter", foreignFilter, check.Warn, "another program on mye00000001: intruder (id "},
		{"foreign XDP program", foreignXDP, check.Warn, "another program on eth0: intruder (id "},
		{"other wire is smaller", func(t *testing.T, n *node) {
			n.options.Config.Devices = []string{"eth+"}
			addVeth(t, "eth1", 1400)
		}, check.Warn, "wires differ in MTU: eth0 1500, eth1 1400"},
		{"MTU too large", func(_ *testing.T, n *node) {
			n.options.Config.MTU = 9000
		}, check.Fail, "configured as 9000, and a wire carries 1500"},
		{"MTU too small for IPv6", func(t *testing.T, n *node) {
			n.options.Config.RoutingMode = "tunnel"
			must(t, netlink.LinkSetMTU(n.wire, 1300))
		}, check.Fail, "pods are left 1250 bytes"},
		{"route with an MTU", func(t *testing.T, n *node) {
			_, dst, _ := net.ParseCIDR("198.51.100.0/24")
			must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: n.wire.Attrs().Index, Dst: dst, MTU: 1300}))
		}, check.Warn, "1 routes have an MTU that is not locked: 198.51.100.0/24 mtu 1300"},
		{"old pod link", func(t *testing.T, n *node) {
			must(t, netlink.LinkSetMTU(n.wire, 1400))
		}, check.Warn, "1 pod links have an MTU above 1400, or the tunnel one above 1400"},
		{"wire down", func(t *testing.T, n *node) { must(t, netlink.LinkSetDown(n.peer)) }, check.Fail, "eth0 is down"},
		{"no wire", func(t *testing.T, n *node) {
			must(t, netlink.LinkDel(n.wire))
		}, check.Warn, "no device leads to other nodes"},
		{"offload off", func(t *testing.T, _ *node) {
			offload(t, "eth0", 0x1f /* ETHTOOL_STSO */, 0)
		}, check.Warn, "eth0 (veth) has tso off"},
	}
}

// spoiltByOthers are traces of other networks, and faults of files and of the agent.
func spoiltByOthers() []spoilt {
	return []spoilt{
		{"another network", func(t *testing.T, _ *node) {
			addVeth(t, "cali12345", 1500)
		}, check.Warn, "cali12345 is of Calico"},
		{"Cilium's sockets", ciliumSockets, check.Fail, "1 programs of Cilium on "},
		{"Cilium's chains", func(t *testing.T, _ *node) {
			addChain(t, "CILIUM_FORWARD")
		}, check.Warn, "Cilium has 1 chains"},
		{"port taken", func(t *testing.T, n *node) {
			n.options.Config.RoutingMode = "tunnel"
			must(t, netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "vx"}, FlowBased: true,
				Port: 8472}))
		}, check.Fail, "vx has UDP port 8472 as well"},
		{"other conflist", func(t *testing.T, n *node) {
			write(t, n.options.Config.CNI.ConfPath, "00-other.conf")
		}, check.Fail, "00-other.conf comes before"},
		{"later conflist", func(t *testing.T, n *node) {
			write(t, n.options.Config.CNI.ConfPath, "10-other.conflist")
		}, check.Info, "10-other.conflist is another network's"},
		{"no bpffs", func(t *testing.T, n *node) {
			n.options.Config.Myelin.BPFRoot = t.TempDir()
		}, check.Fail, "is no BPF file system"},
		{"no plugin", func(t *testing.T, n *node) {
			n.options.Config.CNI.BinPath = t.TempDir()
		}, check.Warn, "the plugin is not installed"},
		{"dropping chain", func(t *testing.T, _ *node) {
			dropForwarded(t)
		}, check.Info, "chain forward of table inet filter drops by default"},
		{"dropping chain, legacy", func(t *testing.T, n *node) {
			n.options.Config.BPF.HostLegacyRouting = true
			dropForwarded(t)
		}, check.Fail, "chain forward of table inet filter drops by default"},
		{"broken agent", func(_ *testing.T, n *node) {
			n.options.Agent = n.report()
			n.options.Agent.Features = []status.Feature{{Name: "IPAM", State: status.Broken,
				Problems: []string{"no address"}}}
		}, check.Fail, "IPAM: no address"},
	}
}

// TestExamine makes a healthy node (a wire eth0 with a default route, a pod
// link, forwarding on), spoils one thing, and looks for the finding; on the
// healthy node there must be none such.
func TestExamine(t *testing.T) {
	nettest.Root(t)
	for _, test := range allSpoilt() {
		t.Run(test.name, func(t *testing.T) {
			inNamespace(t, func() {
				n := newNode(t)
				n.options.Checks = slices.DeleteFunc(n.options.Checks, func(c check.Check) bool {
					return c.Area == "bpf" // no case is about it; TestHealthy loads the datapath
				})
				if f := find(Examine(n.options), test.level, test.want); f != nil {
					t.Fatalf("on a healthy node: %+v", *f)
				}
				test.spoil(t, n)
				findings := Examine(n.options)
				f := find(findings, test.level, test.want)
				if f == nil {
					t.Fatalf("no %s with %q in\n%s", test.level, test.want, render(t, findings))
				}
				if f.Level != check.Info && f.Why == "" && f.Area != "agent" {
					t.Errorf("%q says not why it matters", f.What)
				}
			})
		})
	}
}

// TestHealthy: a good node has nothing that is worse than INFO.
func TestHealthy(t *testing.T) {
	nettest.Root(t)
	inNamespace(t, func() {
		findings := Examine(newNode(t).options)
		if w := Worst(findings); w != check.OK && w != check.Info {
			t.Errorf("a healthy node has %s:\n%s", w, render(t, findings))
		}
		if find(findings, check.OK, "the kernel accepts the datapath") == nil ||
			find(findings, check.OK, "BPF file system at") == nil {
			t.Errorf("the datapath was not tried:\n%s", render(t, findings))
		}
	})
}

// node is the machine under examination.
type node struct {
	options    Options
	wire, peer netlink.Link
}

// newNode furnishes the namespace of the thread.
func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{}
	n.wire = addVeth(t, "eth0", 1500)
	n.peer, _ = netlink.LinkByName("p-eth0")
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netlink.LinkSetUp(lo))
	addr, _ := netlink.ParseAddr("192.0.2.1/24")
	must(t, netlink.AddrAdd(n.wire, addr))
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: n.wire.Attrs().Index, Gw: []byte{192, 0, 2, 254}}))
	addVeth(t, "mye00000001", 1500)
	for name, value := range map[string]string{
		"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1", "net/ipv4/conf/all/rp_filter": "0",
		"net/ipv4/conf/eth0/rp_filter": "2", "net/ipv4/conf/mye00000001/rp_filter": "0",
	} {
		sysctl(t, name, value)
	}
	c := config.Default()
	c.IPv6.Enabled = true
	dir := t.TempDir()
	c.Myelin.BPFRoot, c.CNI.ConfPath, c.CNI.BinPath = filepath.Join(dir, "bpf"), filepath.Join(dir, "conf"),
		filepath.Join(dir, "bin")
	root := c.Myelin.BPFRoot
	must(t, os.Mkdir(root, 0o700))
	must(t, unix.Mount("bpf", root, "bpf", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(root, unix.MNT_DETACH)) })
	write(t, c.CNI.ConfPath, "05-myelin.conflist")
	write(t, c.CNI.BinPath, "myelin-cni")
	// thread-self is of the thread that is in the namespace; /proc/sys/net is, too.
	n.options = Options{Config: c, Proc: "/proc", Sys: "/sys", Checks: agent.Checks()}
	return n
}

// report is of an agent that is content.
func (n *node) report() *status.Report {
	return &status.Report{Devices: []status.Device{{Index: n.wire.Attrs().Index, Kind: "wire"}}}
}

// inNamespace calls f on a thread in a network namespace of its own.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	runtime.LockOSThread()
	own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(own)
	must(t, unix.Unshare(unix.CLONE_NEWNET))
	defer func() {
		if unix.Setns(own, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	f()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sysctl(t *testing.T, name, value string) {
	t.Helper()
	must(t, os.WriteFile("/proc/sys/"+name, []byte(value), 0))
}

func write(t *testing.T, dir, name string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o755))
}

func addVeth(t *testing.T, name string, mtu int) netlink.Link {
	t.Helper()
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}, PeerName: "p-" + name}
	must(t, netlink.LinkAdd(v))
	peer, err := netlink.LinkByName(v.PeerName)
	must(t, err)
	must(t, netlink.LinkSetUp(peer))
	must(t, netlink.LinkSetUp(v))
	return v
}

func find(findings []check.Finding, l check.Level, part string) *check.Finding {
	for i, f := range findings {
		if f.Level == l && strings.Contains(f.What, part) {
			return &findings[i]
		}
	}
	return nil
}

func render(t *testing.T, findings []check.Finding) string {
	t.Helper()
	var b strings.Builder
	must(t, Render(&b, findings, Style{Width: 120}))
	return b.String()
}

func intruder(t *testing.T, kind ebpf.ProgramType) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "intruder", Type: kind, License: "Dual BSD/GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2),
			asm.Return()},
	})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func foreignTCX(t *testing.T, n *node) {
	if err := hooks.TCX(); err != nil {
		foreignFilterOn(t, n.wire)
		return
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: n.wire.Attrs().Index, Program: intruder(t, ebpf.SchedCLS),
		Attach: ebpf.AttachTCXIngress})
	must(t, err)
	t.Cleanup(func() { l.Close() })
}

func foreignFilter(t *testing.T, _ *node) {
	pod, err := netlink.LinkByName("mye00000001")
	must(t, err)
	foreignFilterOn(t, pod)
}

func foreignFilterOn(t *testing.T, l netlink.Link) {
	t.Helper()
	index := l.Attrs().Index
	must(t, netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}))
	must(t, netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Protocol: 3,
			Priority: 1},
		Fd: intruder(t, ebpf.SchedCLS).FD(), Name: "intruder", DirectAction: true,
	}))
}

// ciliumSockets leaves a program on a control group of the test's own.
func ciliumSockets(t *testing.T, n *node) {
	root := t.TempDir()
	must(t, unix.Mount("none", root, "cgroup2", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(root, unix.MNT_DETACH)) })
	n.options.Config.Myelin.CgroupRoot = filepath.Join(root, fmt.Sprintf("myelin-doctor-%d", os.Getpid()))
	must(t, os.Mkdir(n.options.Config.Myelin.CgroupRoot, 0o755))
	t.Cleanup(func() { must(t, os.Remove(n.options.Config.Myelin.CgroupRoot)) })
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "cil_sock4_connect", Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect,
		License:      "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	l, err := link.AttachCgroup(link.CgroupOptions{Path: n.options.Config.Myelin.CgroupRoot,
		Attach: ebpf.AttachCGroupInet4Connect, Program: p})
	must(t, err)
	t.Cleanup(func() { l.Close() })
}

func foreignXDP(t *testing.T, n *node) {
	l, err := link.AttachXDP(link.XDPOptions{Program: intruder(t, ebpf.XDP), Interface: n.wire.Attrs().Index,
		Flags: link.XDPGenericMode})
	must(t, err)
	t.Cleanup(func() { l.Close() })
}
