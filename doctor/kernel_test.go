package doctor

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"myelin/agent"
	"myelin/config"
	"myelin/doctor/check"
)

// TestFiles checks what is read from files only. A directory tree stands in for /proc and /sys, since a test cannot
// boot a machine with a slow clock.
func TestFiles(t *testing.T) {
	for _, test := range []struct {
		file, content string
		run           func(*check.Machine)
		level         check.Level
		want          string
	}{
		{"sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n", clock, check.Warn,
			"the clock source is hpet"},
		{"sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n", clock, check.OK,
			"clock source tsc"},
		{"sys/kernel/security/lockdown", "none [integrity] confidentiality\n", lockdown, check.Info,
			"locked down"},
		{"proc/sys/kernel/unprivileged_bpf_disabled", "0\n", security, check.Warn,
			"unprivileged_bpf_disabled is 0"},
		{"proc/sys/kernel/bpf_stats_enabled", "1\n", security, check.Warn, "bpf_stats_enabled is 1"},
		{"proc/sys/net/core/bpf_jit_harden", "2\n", security, check.Warn, "bpf_jit_harden is 2"},
		{"proc/self/status", "CapEff:\t0000000000001000\n", capabilitiesOf, check.Fail,
			"lacks CAP_BPF and CAP_PERFMON"},
		{"proc/self/status", "CapEff:\t000000c000001000\n", capabilitiesOf, check.OK, "may load programs"},
		{"proc/net/ip_tables_names", "filter\nnat\n", netfilter, check.Info,
			"iptables tables are loaded: filter, nat"},
		{"proc/sys/net/netfilter/nf_conntrack_count", "12\n", netfilter, check.Info,
			"connection tracking has 12 entries"},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, test.file)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(test.content), 0o644))
		m := &check.Machine{Config: config.Default(), Proc: filepath.Join(dir, "proc"), Sys: filepath.Join(dir, "sys")}
		test.run(m)
		if find(m.Findings, test.level, test.want) == nil {
			t.Errorf("%s %q: no %s with %q in %+v", test.file, test.content, test.level, test.want, m.Findings)
		}
		must(t, os.WriteFile(path, []byte("\n"), 0o644))
		m.Findings = nil
		test.run(m)
		if f := find(m.Findings, test.level, test.want); f != nil {
			t.Errorf("%s is empty: %+v", test.file, *f)
		}
	}
}

func capabilitiesOf(m *check.Machine) { capabilities(m, "") }

// Without capabilitiesOf, checks that need them are left out and named, instead of finding a kernel without features.
func TestWithoutCapabilities(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "self"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "self/status"), []byte("CapEff:\t0000000000000000\n"), 0o644))
	findings := Examine(Options{Config: config.Default(), Proc: dir, Sys: "/sys", Checks: agent.Checks()})
	if find(findings, check.Fail, "not, or not fully, examined are bpf, devices, programs, netfilter") == nil {
		t.Errorf("nothing says what was not examined: %+v", findings)
	}
	for _, f := range findings {
		if f.Area == "bpf" || f.Area == "netfilter" || f.Area == "programs" || strings.Contains(f.What, "can be made") {
			t.Errorf("without capabilities: %+v", f)
		}
	}
}

func TestParseRelease(t *testing.T) {
	for release, want := range map[string][2]int{
		"6.12.3-amd64": {6, 12}, "5.10.0-30-cloud": {5, 10}, "6.18.44-fc-v595": {6, 18}, "7.0-rc1": {7, 0}, "": {0, 0},
		"x": {0, 0},
	} {
		if major, minor := parseRelease(release); [2]int{major, minor} != want {
			t.Errorf("%q is %d.%d, want %v", release, major, minor, want)
		}
	}
}

// TestFromSettings: a configuration survives being told as text.
func TestFromSettings(t *testing.T) {
	const file = `
routingMode: tunnel
tunnelPort: 4789
ipv6: {enabled: true}
devices: [eth0, "bond+"]
MTU: 1500
ipv4NativeRoutingCIDR: 10.0.0.0/8
bpf: {hostLegacyRouting: true, vlanBypass: [1, 2], monitorInterval: 7s, mapDynamicSizeRatio: 0.25}
cni: {confPath: /a/b}
myelin: {nodeName: n7, nat: {portRange: 20000-29999}}
`
	c, err := config.Parse([]byte(file), "test")
	must(t, err)
	got, err := FromSettings(c.Explain())
	must(t, err)
	got.Myelin.NodeName = "n7"
	values := func(c *config.Config) map[string]string {
		m := map[string]string{}
		for _, s := range c.Explain() {
			m[s.Key] = s.Value
		}
		return m
	}
	if a, b := values(got), values(c); !reflect.DeepEqual(a, b) {
		t.Errorf("settings became %v, want %v", a, b)
	}
}

func TestRender(t *testing.T) {
	var b strings.Builder
	must(t, Render(&b, []check.Finding{
		{Area: "kernel", Level: check.OK, What: "kernel 6.12"},
		{Area: "mtu", Level: check.Warn, What: "the wires differ in MTU: eth0 1500, eth1 1400",
			Why: "pods get the smallest", Do: "set the same MTU on all of them"},
	}, Style{Width: 50, Quiet: true}))
	const want = `WARN  mtu        the wires differ in MTU: eth0
                 1500, eth1 1400
                 why: pods get the smallest
                 do:  set the same MTU on all of
                      them

1 OK, 0 INFO, 1 WARN, 0 FAIL
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func FuzzParseChain(f *testing.F) {
	f.Add(append([]byte{1, 0, 0, 0}, nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated("forward")).Serialize()...))
	hook := nl.NewRtAttr(unix.NFTA_CHAIN_HOOK, nil)
	hook.AddRtAttr(unix.NFTA_HOOK_HOOKNUM, []byte{0, 0, 0, 2})
	f.Add(append([]byte{1, 0, 0, 0}, hook.Serialize()...))
	f.Fuzz(func(t *testing.T, message []byte) {
		c, ok := parseChain(message)
		if !ok && c.base {
			t.Errorf("%+v of what is no chain", c)
		}
	})
}

// dropForwarded makes what "nft add table inet filter; nft add chain inet
// filter forward { type filter hook forward priority 0; policy drop; }" does.
func dropForwarded(t *testing.T) { addChain(t, "forward") }

// addChain makes a chain that drops what is forwarded.
func addChain(t *testing.T, name string) {
	t.Helper()
	const (
		batchBegin, batchEnd = unix.NLMSG_MIN_TYPE, unix.NLMSG_MIN_TYPE + 1
		inet                 = 1 // NFPROTO_INET
		tableName            = 1 // NFTA_TABLE_NAME
	)
	number := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	hook := nl.NewRtAttr(unix.NFTA_CHAIN_HOOK|unix.NLA_F_NESTED, nil)
	hook.AddRtAttr(unix.NFTA_HOOK_HOOKNUM, number(hookForward))
	hook.AddRtAttr(unix.NFTA_HOOK_PRIORITY, number(0))
	message := func(kind, flags int, family uint8, resource uint16, attributes ...nl.NetlinkRequestData) []byte {
		r := nl.NewNetlinkRequest(kind, flags)
		r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0, ResId: resource})
		for _, a := range attributes {
			r.AddData(a)
		}
		return r.Serialize()
	}
	// The resource is in network order.
	const nftables = unix.NFNL_SUBSYS_NFTABLES << 8
	const create = unix.NLM_F_CREATE | unix.NLM_F_ACK
	var batch []byte
	batch = append(batch, message(batchBegin, 0, 0, nftables)...)
	batch = append(batch, message(nftables|unix.NFT_MSG_NEWTABLE, create, inet, 0,
		nl.NewRtAttr(tableName, nl.ZeroTerminated("filter")))...)
	batch = append(batch, message(nftables|unix.NFT_MSG_NEWCHAIN, create, inet, 0,
		nl.NewRtAttr(unix.NFTA_CHAIN_TABLE, nl.ZeroTerminated("filter")),
		nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated(name)),
		hook, nl.NewRtAttr(unix.NFTA_CHAIN_POLICY, number(policyDrop)), nl.NewRtAttr(unix.NFTA_CHAIN_TYPE,
			nl.ZeroTerminated("filter")))...)
	batch = append(batch, message(batchEnd, 0, 0, nftables)...)
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT)
	must(t, err)
	if errno := int32(nl.NativeEndian().Uint32(answer[unix.SizeofNlMsghdr:])); n < unix.SizeofNlMsghdr+4 || errno != 0 {
		t.Fatalf("make chain: %v", unix.Errno(-errno))
	}
}

// offload switches an offload of a device.
func offload(t *testing.T, name string, command, value uint32) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	v := &[2]uint32{command, value} // struct ethtool_value
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(v)} // struct ifreq
	copy(request.name[:], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL,
		uintptr(unsafe.Pointer(&request))); errno != 0 {
		t.Fatalf("set offload: %v", errno)
	}
}
