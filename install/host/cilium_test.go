package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/bpf/hooks"
	"myelin/endpoint/nettest"
)

// node is a node where Cilium and other programs have been.
type node struct {
	*testing.T
	options CiliumOptions
	said    []string
}

// newNode has a control group and a BPF file system of its own, and a wire.
func newNode(t *testing.T) *node {
	nettest.Root(t)
	dir := t.TempDir()
	n := &node{T: t, options: CiliumOptions{
		RunDir: filepath.Join(dir, "run/cilium"), BPFRoot: filepath.Join(dir, "bpf"),
		ConfPath: filepath.Join(dir, "net.d"), BinPath: filepath.Join(dir, "bin"),
		SysctlDir: filepath.Join(dir, "sysctl.d"), Proc: "/proc",
	}}
	n.options.Say = func(format string, args ...any) { n.said = append(n.said, fmt.Sprintf(format, args...)) }
	root := filepath.Join(n.options.RunDir, ciliumCgroup)
	_, err := Mount(n.options.BPFRoot, root)
	check(t, err)
	t.Cleanup(func() {
		_ = unix.Unmount(n.options.BPFRoot, unix.MNT_DETACH)
		_ = unix.Unmount(root, unix.MNT_DETACH)
	})
	// A mount of its own, as the first one goes with the run directory.
	mine := filepath.Join(dir, "cgroup")
	_, err = Mount("", mine)
	check(t, err)
	group := filepath.Join(mine, fmt.Sprintf("myelin-host-%d", os.Getpid()))
	check(t, os.Mkdir(group, 0o755))
	t.Cleanup(func() {
		_ = os.Remove(group)
		_ = unix.Unmount(mine, unix.MNT_DETACH)
	})
	n.options.Cgroups = []string{group, filepath.Join(dir, "nowhere")}
	n.sh("ip link set lo up; ip link add eth0 type veth peer name lan0; ip link set eth0 up; ip link set lan0 up; ip " +
		"addr add 192.0.2.1/24 dev eth0; ip addr add 2001:db8::1/64 dev eth0 nodad")
	t.Cleanup(func() { n.sh("ip link del eth0") })
	return n
}

func (n *node) sh(script string) string {
	n.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		n.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

func (n *node) write(paths ...string) {
	n.Helper()
	for _, path := range paths {
		check(n.T, os.MkdirAll(filepath.Dir(path), 0o755))
		check(n.T, os.WriteFile(path, nil, 0o600))
	}
}

func (n *node) program(name string, kind ebpf.ProgramType, at ebpf.AttachType) *ebpf.Program {
	n.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: kind, AttachType: at, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	check(n.T, err)
	n.Cleanup(func() { p.Close() })
	return p
}

// state is what a node has, that a network may leave there.
func (n *node) state() string {
	n.Helper()
	text := n.sh("ip -o link | sed 's/^[0-9]*: //; s/qlen.*//'; for f in -4 -6; do ip $f rule; ip $f route show " +
		"table all | grep -v fe80; done")
	for _, tool := range []string{"iptables-save", "ip6tables-save"} {
		if _, err := exec.LookPath(tool); err == nil {
			text += n.sh(tool + " | grep -E '^-|CILIUM' || true")
		}
	}
	wire, err := netlink.LinkByName("eth0")
	check(n.T, err)
	handle, err := netlink.NewHandle()
	check(n.T, err)
	defer handle.Close()
	programs, err := hooks.List(handle, wire)
	check(n.T, err)
	group, err := os.Open(n.options.Cgroups[0])
	check(n.T, err)
	defer group.Close()
	sockets, err := hooks.Sockets(group)
	check(n.T, err)
	for _, p := range slices.Concat(programs, sockets) {
		text += p.Where + " " + p.Name + "\n"
	}
	for _, dir := range []string{n.options.RunDir, n.options.BPFRoot, n.options.ConfPath, n.options.BinPath,
		n.options.SysctlDir} {
		check(n.T, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if e.Name() == ciliumCgroup {
				return fs.SkipDir
			}
			text += strings.TrimPrefix(path, filepath.Dir(dir)) + "\n"
			return err
		}))
	}
	return text
}

// others puts beside Cilium what must stay.
func (n *node) others() {
	o := n.options
	n.write(filepath.Join(o.ConfPath, "10-ptp.conflist.cilium_bak"), filepath.Join(o.ConfPath, "05-other.conflist"),
		filepath.Join(o.BinPath, "ptp"),
		filepath.Join(o.SysctlDir, "99-mine.conf"), filepath.Join(filepath.Dir(o.RunDir), "other"))
	n.sh("ip route add 198.51.100.0/24 via 192.0.2.9 proto static; ip rule add fwmark 7 lookup 77 priority 50")
	n.Cleanup(func() { n.sh("ip rule del priority 50") })
	l, err := link.AttachCgroup(link.CgroupOptions{Path: o.Cgroups[0], Attach: ebpf.AttachCGroupInet6Connect,
		Program: n.program("mine", ebpf.CGroupSockAddr, ebpf.AttachCGroupInet6Connect)})
	check(n.T, err)
	n.Cleanup(func() { l.Close() })
}

// cilium leaves what version 1.18 does, and names of older ones.
func (n *node) cilium() {
	o := n.options
	n.write(filepath.Join(o.ConfPath, "05-cilium.conflist"), filepath.Join(o.ConfPath, "00-cilium-cni.conf"),
		filepath.Join(o.BinPath, ciliumPlugin),
		filepath.Join(o.SysctlDir, ciliumSysctls), filepath.Join(o.RunDir, "state/templates/x"),
		filepath.Join(o.RunDir, "cilium.pid"))
	n.sh(
		"ip link add cilium_host type veth peer name cilium_net; ip link set cilium_host up; ip link set " +
			"cilium_net up; " +
			"ip addr add 10.1.0.1/32 dev cilium_host; ip route add 10.1.0.0/24 via 10.1.0.1 dev cilium_host proto " +
			"kernel; " +
			"ip route add 10.2.0.0/24 via 192.0.2.2 proto kernel; ip -6 route add fd02::/64 via 2001:db8::2 proto " +
			"kernel; " +
			"ip route add local default dev lo table 2004 proto kernel; ip -6 route add local default dev lo table " +
			"2004 " +
			"proto kernel")
	for _, family := range []string{"-4", "-6"} {
		n.sh("ip " + family + " rule add priority 100 lookup local; ip " + family + " rule del priority 0; ip " +
			family + " rule add priority 9 fwmark 0x200/0xf00 lookup 2004")
	}
	for _, tool := range []string{"iptables", "ip6tables"} {
		if _, err := exec.LookPath(tool); err == nil {
			n.sh(
				tool + " -N CILIUM_FORWARD; " + tool + " -A FORWARD -m comment --comment 'cilium-feeder: " +
					"CILIUM_FORWARD' -j CILIUM_FORWARD; " +
					tool + " -A CILIUM_FORWARD -o cilium_host -j ACCEPT; " + tool + " -t nat -N OLD_CILIUM_POST_nat")
		}
	}
	n.attach()
}

// attach hangs programs where Cilium does: by links that are pinned, by a filter, and without a link, as before kernel
// 5.7.
func (n *node) attach() {
	wire, err := netlink.LinkByName("eth0")
	check(n.T, err)
	pins := filepath.Join(n.options.BPFRoot, "cilium")
	for _, dir := range []string{"devices/eth0/links", "socketlb/links/cgroup"} {
		check(n.T, os.MkdirAll(filepath.Join(pins, dir), 0o700))
	}
	check(n.T, os.MkdirAll(filepath.Join(n.options.BPFRoot, "tc/globals"), 0o700))
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	check(n.T, err)
	check(n.T, m.Pin(filepath.Join(n.options.BPFRoot, "tc/globals/cilium_lxc")))
	check(n.T, m.Close())
	device := n.program("cil_from_netdev", ebpf.SchedCLS, 0)
	if hooks.TCX() == nil {
		l, err := link.AttachTCX(link.TCXOptions{Interface: wire.Attrs().Index, Program: device,
			Attach: ebpf.AttachTCXIngress})
		check(n.T, err)
		check(n.T, l.Pin(filepath.Join(pins, "devices/eth0/links/cil_from_netdev")))
		check(n.T, l.Close())
	}
	n.sh("tc qdisc add dev eth0 clsact")
	check(n.T, netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: wire.Attrs().Index, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1,
			Protocol: unix.ETH_P_ALL, Priority: 1},
		Fd: device.FD(), Name: "cil_to_netdev-eth0", DirectAction: true,
	}))
	driver := n.program("cil_xdp_entry", ebpf.XDP, 0)
	check(n.T, netlink.LinkSetXdpFdWithFlags(wire, driver.FD(), int(link.XDPGenericMode)))
	connect := n.program("cil_sock4_connect", ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Connect)
	group := n.options.Cgroups[0]
	l, err := link.AttachCgroup(link.CgroupOptions{Path: group, Attach: ebpf.AttachCGroupInet4Connect,
		Program: connect})
	check(n.T, err)
	check(n.T, l.(interface{ Pin(string) error }).Pin(filepath.Join(pins, "socketlb/links/cgroup/cil_sock4_connect")))
	check(n.T, l.Close())
	cgroup, err := os.Open(group)
	check(n.T, err)
	defer cgroup.Close()
	send := n.program("cil_sock4_sendmsg", ebpf.CGroupSockAddr, ebpf.AttachCGroupUDP4Sendmsg)
	check(n.T, link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(cgroup.Fd()), Program: send,
		Attach: ebpf.AttachCGroupUDP4Sendmsg}))
}

// TestCleanCilium has a node with what Cilium leaves, and others' things like it: those stay, and nothing else, also
// after the second time.
func TestCleanCilium(t *testing.T) {
	n := newNode(t)
	n.others()
	before := n.state()
	n.cilium()
	if n.state() == before {
		t.Fatal("nothing to clean")
	}
	for i := range 2 {
		check(t, CleanCilium(t.Context(), n.options))
		if i == 1 && len(n.said) > 0 {
			t.Errorf("again: said %q", n.said)
		}
		want := strings.ReplaceAll(before, "/cilium\n", "")
		if after := n.state(); strings.ReplaceAll(after, "/cilium\n", "") != want {
			t.Errorf("after\n%s\nbefore\n%s\nsaid %q", after, before, n.said)
		}
		n.said = nil
	}
}

// TestCiliumRuns has an agent, and then a pod: nothing is touched while they are there, and it goes on when they have
// ended.
func TestCiliumRuns(t *testing.T) {
	n := newNode(t)
	conf := filepath.Join(n.options.ConfPath, "05-cilium.conflist")
	n.write(conf)
	sleep, err := exec.LookPath("sleep")
	check(t, err)
	program, err := os.ReadFile(sleep)
	check(t, err)
	agent := filepath.Join(t.TempDir(), ciliumAgent)
	check(t, os.WriteFile(agent, program, 0o700))
	process := exec.Command(agent, "60")
	check(t, process.Start())
	if err := CleanCilium(t.Context(), n.options); err == nil || !strings.Contains(err.Error(),
		fmt.Sprintf("cilium-agent runs, process %d: keep it off", process.Process.Pid)) {
		t.Errorf("while the agent runs: %v", err)
	}
	pod := nettest.NewNS(t)
	n.sh("ip link add lxc0123456789ab type veth peer name tmp0 && ip link set tmp0 netns " + pod)
	n.options.Patience = 20 * time.Second
	done := make(chan error, 1)
	go func() { done <- CleanCilium(t.Context(), n.options) }()
	time.Sleep(300 * time.Millisecond)
	check(t, process.Process.Kill())
	_ = process.Wait()
	time.Sleep(300 * time.Millisecond)
	_, err = os.Stat(conf)
	check(t, err)
	nettest.RemoveNS(t, pod)
	check(t, <-done)
	if _, err := os.Stat(conf); err == nil {
		t.Error("the configuration is there still")
	}
	if text := strings.Join(n.said, "\n"); !strings.Contains(text, "waiting: cilium-agent runs") ||
		!strings.Contains(text, "waiting: 1 pods run still (lxc0123456789ab)") {
		t.Errorf("said %s", text)
	}
}

// TestCiliumForce cuts pods off.
func TestCiliumForce(t *testing.T) {
	n := newNode(t)
	pod := nettest.NewNS(t)
	n.sh("ip link add lxc0123456789ab type veth peer name tmp0 && ip link set tmp0 netns " + pod)
	if err := CleanCilium(t.Context(), n.options); err == nil || !strings.Contains(err.Error(),
		"1 pods run still (lxc0123456789ab)") {
		t.Errorf("with a pod: %v", err)
	}
	n.options.Force = true
	check(t, CleanCilium(t.Context(), n.options))
	if _, err := net.InterfaceByName("lxc0123456789ab"); err == nil {
		t.Error("the pod's link is there still")
	}
}
