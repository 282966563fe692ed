package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"myelin/doctor/check"
)

// The oldest kernel that Myelin runs on.
const (
	floorMajor = 5
	floorMinor = 10
)

// kernel examines the kernel and this process. notExamined names areas that need capabilities.
func kernel(m *check.Machine, notExamined string) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		m.Fail("uname: "+err.Error(), "the kernel's version is not known", "")
		return
	}
	release := unix.ByteSliceToString(u.Release[:])
	major, minor := parseRelease(release)
	if major < floorMajor || major == floorMajor && minor < floorMinor {
		m.Fail(fmt.Sprintf("kernel %s is older than %d.%d", release, floorMajor, floorMinor),
			"it lacks bpf_redirect_peer and bpf_redirect_neigh", "boot a newer kernel")
	} else {
		m.OK("kernel %s, %d.%d or later is needed", release, floorMajor, floorMinor)
	}
	capabilities(m, notExamined)
	lockdown(m)
	memlock(m, major, minor)
	security(m)
}

// parseRelease reads "6.12.3-amd64"; what it can't read is 0.
func parseRelease(release string) (major, minor int) {
	parts := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	if len(parts) > 0 {
		major, _ = strconv.Atoi(parts[0])
	}
	if len(parts) > 1 {
		minor, _ = strconv.Atoi(parts[1])
	}
	return major, minor
}

// lackingCapabilities reads what this process, which stands for the agent, may not do.
func lackingCapabilities(m *check.Machine) (lacking []string, err error) {
	data, err := os.ReadFile(filepath.Join(m.Proc, "self/status"))
	if err != nil {
		return nil, err
	}
	_, rest, _ := strings.Cut(string(data), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		return nil, err
	}
	has := func(c uint) bool { return set&(1<<c) != 0 }
	if !has(unix.CAP_NET_ADMIN) {
		lacking = append(lacking, "CAP_NET_ADMIN")
	}
	if !has(unix.CAP_SYS_ADMIN) && !(has(unix.CAP_BPF) && has(unix.CAP_PERFMON)) {
		lacking = append(lacking, "CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN")
	}
	return lacking, nil
}

func capabilities(m *check.Machine, notExamined string) {
	lacking, err := lackingCapabilities(m)
	switch {
	case err != nil:
		m.Warn("capabilities are not known: "+err.Error(), "", "")
	case len(lacking) > 0:
		m.Fail("this process lacks "+strings.Join(lacking, "; ")+": not, or not fully, examined are "+notExamined,
			"without them, no program can be loaded and no device made",
			"run `myelin doctor` as root, and the agent too")
	default:
		m.OK("this process may load programs and change the network")
	}
}

func lockdown(m *check.Machine) {
	data, err := os.ReadFile(filepath.Join(m.Sys, "kernel/security/lockdown"))
	_, mode, _ := strings.Cut(string(data), "[")
	mode, _, _ = strings.Cut(mode, "]")
	if err != nil || mode == "" || mode == "none" {
		return
	}
	m.Info("the kernel is locked down: "+mode,
		"programs of the network are allowed; tracing programs may not be", "")
}

// memlock: until 5.11 BPF memory counted against RLIMIT_MEMLOCK, since then it
// counts against the memory control group.
func memlock(m *check.Machine, major, minor int) {
	if major > 5 || major == 5 && minor >= 11 {
		m.OK("memory of BPF maps is accounted to the agent's control group")
		return
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err == nil && limit.Max < 64<<20 {
		m.Info(fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes at most", limit.Max),
			"BPF maps count against it before kernel 5.11",
			"the agent raises it if it has CAP_SYS_RESOURCE; else set LimitMEMLOCK=infinity")
	}
}

func security(m *check.Machine) {
	if v, ok := m.Sysctl("kernel/unprivileged_bpf_disabled"); ok && v == "0" {
		m.Warn("kernel.unprivileged_bpf_disabled is 0", "every user may load BPF programs, a large surface for attacks",
			"set it to 2")
	}
	if v, ok := m.Sysctl("kernel/bpf_stats_enabled"); ok && v == "1" {
		m.Warn("kernel.bpf_stats_enabled is 1",
			"the kernel reads the clock twice around each program: 20 to 50 ns a packet and hook", "set it to 0")
	}
	if v, ok := m.Sysctl("net/core/bpf_jit_harden"); ok && v == "2" {
		m.Warn("net.core.bpf_jit_harden is 2",
			"constants are blinded in privileged programs, too, which makes them slower", "set it to 1")
	}
}

func mounts(m *check.Machine) {
	root := m.Config.Myelin.BPFRoot
	var fs unix.Statfs_t
	err := unix.Statfs(root, &fs)
	switch {
	case errors.Is(err, unix.ENOENT):
		m.Fail(root+" is not there", "maps and links are pinned there, so that packets flow on without an agent",
			"mount -t bpf bpf "+root)
	case err != nil:
		m.Fail(root+": "+err.Error(), "maps and links are pinned there", "")
	case fs.Type != unix.BPF_FS_MAGIC:
		m.Fail(root+" is no BPF file system", "maps and links can't be pinned there, and would end with the agent",
			"mount -t bpf bpf "+root)
	default:
		m.OK("BPF file system at %s", root)
	}
	if at, err := m.Config.Cgroup(m.Proc); err == nil {
		if err := unix.Statfs(at, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			m.Fail(at+" is no control group v2 directory", "myelin.cgroupRoot names it", "correct the configuration")
			return
		}
		m.OK("control group v2 at %s", at)
	} else {
		m.Info("no control group v2 hierarchy is mounted", "socket-level load balancing hangs there",
			"mount -t cgroup2 none /run/myelin/cgroup2")
	}
}

func clock(m *check.Machine) {
	data, err := os.ReadFile(filepath.Join(m.Sys, "devices/system/clocksource/clocksource0/current_clocksource"))
	if err != nil {
		m.Info("the clock source is not known: "+err.Error(), "", "")
		return
	}
	switch source := strings.TrimSpace(string(data)); source {
	case "hpet", "acpi_pm", "refined-jiffies", "jiffies", "pit":
		m.Warn("the clock source is "+source,
			"each reading costs a microsecond or so; the kernel takes a time for each packet it captures or paces",
			"find out in the kernel's log why it gave up tsc")
	default:
		m.OK("clock source %s", source)
	}
}
