package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The oldest kernel that Myelin runs on.
const (
	floorMajor = 5
	floorMinor = 10
)

func (x *examination) kernel() {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		x.fail("uname: "+err.Error(), "the kernel's version is not known", "")
		return
	}
	release := unix.ByteSliceToString(u.Release[:])
	major, minor := parseRelease(release)
	if major < floorMajor || major == floorMajor && minor < floorMinor {
		x.fail(fmt.Sprintf("kernel %s is older than %d.%d", release, floorMajor, floorMinor),
			"it lacks bpf_redirect_peer and bpf_redirect_neigh", "boot a newer kernel")
	} else {
		x.ok("kernel %s, %d.%d or later is needed", release, floorMajor, floorMinor)
	}
	x.capabilities()
	x.lockdown()
	x.memlock(major, minor)
	x.security()
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
func (x *examination) lackingCapabilities() (lacking []string, err error) {
	data, err := os.ReadFile(filepath.Join(x.Proc, "self/status"))
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

func (x *examination) capabilities() {
	lacking, err := x.lackingCapabilities()
	switch {
	case err != nil:
		x.warn("capabilities are not known: "+err.Error(), "", "")
	case len(lacking) > 0:
		x.fail("this process lacks "+strings.Join(lacking, "; ")+": not, or not fully, examined are "+notExamined(),
			"without them, no program can be loaded and no device made",
			"run `myelin doctor` as root, and the agent too")
	default:
		x.ok("this process may load programs and change the network")
	}
}

func (x *examination) lockdown() {
	data, err := os.ReadFile(filepath.Join(x.Sys, "kernel/security/lockdown"))
	_, mode, _ := strings.Cut(string(data), "[")
	mode, _, _ = strings.Cut(mode, "]")
	if err != nil || mode == "" || mode == "none" {
		return
	}
	x.info("the kernel is locked down: "+mode,
		"programs of the network are allowed; tracing programs may not be", "")
}

// memlock: until 5.11 BPF memory counted against RLIMIT_MEMLOCK, since then it
// counts against the memory control group.
func (x *examination) memlock(major, minor int) {
	if major > 5 || major == 5 && minor >= 11 {
		x.ok("memory of BPF maps is accounted to the agent's control group")
		return
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err == nil && limit.Max < 64<<20 {
		x.info(fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes at most", limit.Max),
			"BPF maps count against it before kernel 5.11",
			"the agent raises it if it has CAP_SYS_RESOURCE; else set LimitMEMLOCK=infinity")
	}
}

func (x *examination) security() {
	if v, ok := x.sysctl("kernel/unprivileged_bpf_disabled"); ok && v == "0" {
		x.warn("kernel.unprivileged_bpf_disabled is 0", "every user may load BPF programs, a large surface for attacks",
			"set it to 2")
	}
	if v, ok := x.sysctl("kernel/bpf_stats_enabled"); ok && v == "1" {
		x.warn("kernel.bpf_stats_enabled is 1",
			"the kernel reads the clock twice around each program: 20 to 50 ns a packet and hook", "set it to 0")
	}
	if v, ok := x.sysctl("net/core/bpf_jit_harden"); ok && v == "2" {
		x.warn("net.core.bpf_jit_harden is 2",
			"constants are blinded in privileged programs, too, which makes them slower", "set it to 1")
	}
}

func (x *examination) mounts() {
	root := x.Config.Myelin.BPFRoot
	var fs unix.Statfs_t
	err := unix.Statfs(root, &fs)
	switch {
	case errors.Is(err, unix.ENOENT):
		x.fail(root+" is not there", "maps and links are pinned there, so that packets flow on without an agent",
			"mount -t bpf bpf "+root)
	case err != nil:
		x.fail(root+": "+err.Error(), "maps and links are pinned there", "")
	case fs.Type != unix.BPF_FS_MAGIC:
		x.fail(root+" is no BPF file system", "maps and links can't be pinned there, and would end with the agent",
			"mount -t bpf bpf "+root)
	default:
		x.ok("BPF file system at %s", root)
	}
	if at, err := x.Config.Cgroup(x.Proc); err == nil {
		if err := unix.Statfs(at, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			x.fail(at+" is no control group v2 directory", "myelin.cgroupRoot names it", "correct the configuration")
			return
		}
		x.ok("control group v2 at %s", at)
	} else {
		x.info("no control group v2 hierarchy is mounted", "socket-level load balancing hangs there",
			"mount -t cgroup2 none /run/myelin/cgroup2")
	}
}

func (x *examination) clock() {
	data, err := os.ReadFile(filepath.Join(x.Sys, "devices/system/clocksource/clocksource0/current_clocksource"))
	if err != nil {
		x.info("the clock source is not known: "+err.Error(), "", "")
		return
	}
	switch source := strings.TrimSpace(string(data)); source {
	case "hpet", "acpi_pm", "refined-jiffies", "jiffies", "pit":
		x.warn("the clock source is "+source,
			"each reading costs a microsecond or so; the kernel takes a time for each packet it captures or paces",
			"find out in the kernel's log why it gave up tsc")
	default:
		x.ok("clock source %s", source)
	}
}
