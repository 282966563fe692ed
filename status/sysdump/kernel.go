package sysdump

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"myelin/config"
)

// kernelFiles are of the kernel, below /proc or /sys. Those that a kernel lacks are passed over.
func kernelFiles() []string {
	return []string{
		"proc/version", "proc/cmdline", "proc/uptime", "proc/loadavg", "proc/meminfo", "proc/cpuinfo", "proc/modules",
		"proc/self/mountinfo",
		"proc/net/dev", "proc/net/snmp", "proc/net/snmp6", "proc/net/netstat", "proc/net/sockstat",
		"proc/net/sockstat6",
		"proc/net/softnet_stat", "proc/net/xfrm_stat", "proc/net/if_inet6", "proc/net/protocols",
		"proc/sys/kernel/unprivileged_bpf_disabled", "proc/sys/kernel/bpf_stats_enabled", "proc/sys/kernel/osrelease",
		"sys/kernel/security/lockdown", "sys/devices/system/clocksource/clocksource0/current_clocksource",
		"sys/devices/system/cpu/online",
	}
}

// addKernel adds facts of the kernel, the settings of its network and the pins of the datapath.
func (n *Node) addKernel(a *Archive, c *config.Config) {
	for _, name := range kernelFiles() {
		data, err := readTail(n.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			a.Fail("kernel/"+name, err)
			continue
		}
		a.add("kernel/"+name, data)
	}
	a.add("kernel/sysctl.txt", []byte(n.sysctls("proc/sys/net")))
	if data, err := readTail("/etc/os-release"); err == nil {
		a.add("os-release", data)
	}
	n.addBuild(a)
	a.add("pins.txt", []byte(pins(filepath.Join(c.Myelin.BPFRoot, "myelin"))))
}

// path is where a file of kernelFiles is.
func (n *Node) path(name string) string {
	if rest, ok := strings.CutPrefix(name, "proc/"); ok {
		return filepath.Join(n.Proc, rest)
	}
	return filepath.Join(n.Sys, strings.TrimPrefix(name, "sys/"))
}

// tail is how much of a file is collected, in bytes: of a log its end.
const tail = 4 << 20

// readTail reads a file, of a long one the end, from the begin of a line on.
func readTail(file string) ([]byte, error) {
	data, err := os.ReadFile(file)
	if err != nil || len(data) <= tail {
		return data, err
	}
	data = data[len(data)-tail:]
	_, data, _ = bytes.Cut(data, []byte("\n"))
	return data, nil
}

// secretSysctls hold keys: net.ipv4.tcp_fastopen_key and net.ipv6.conf.*.stable_secret.
var secretSysctls = regexp.MustCompile(`key$|secret`)

// sysctls are lines "net/core/somaxconn = 4096" of a folder of /proc/sys. What can't be read by its nature is passed
// over.
func (n *Node) sysctls(dir string) string {
	var b strings.Builder
	_ = filepath.WalkDir(n.path(dir), func(file string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil
		}
		name, err := filepath.Rel(filepath.Join(n.Proc, "sys"), file)
		if err != nil {
			return nil
		}
		if secretSysctls.MatchString(filepath.Base(file)) {
			fmt.Fprintf(&b, "%s = %s\n", name, redacted)
		} else if data, err := os.ReadFile(file); err == nil {
			fmt.Fprintf(&b, "%s = %s\n", name, strings.Join(strings.Fields(string(data)), " "))
		}
		return nil
	})
	return b.String()
}

// buildOptions are the parts of the kernel's configuration that matter to a network.
var buildOptions = regexp.MustCompile(
	`^(?:# )?CONFIG_(?:[A-Z0-9_]*BPF|DEBUG_INFO_BTF|CGROUP|NET|XFRM|INET|IPV6|VXLAN|` +
		`GENEVE|WIREGUARD|TUN|VETH|BRIDGE|PREEMPT|HZ)`,
)

// addBuild adds what the kernel was built with, where it tells.
func (n *Node) addBuild(a *Archive) {
	data, err := os.ReadFile(filepath.Join(n.Proc, "config.gz"))
	if err != nil {
		return
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		a.Fail("kernel/config", err)
		return
	}
	text, err := io.ReadAll(io.LimitReader(z, tail))
	if err != nil {
		a.Fail("kernel/config", err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if buildOptions.MatchString(line) {
			b.WriteString(line)
		}
	}
	a.add("kernel/config", []byte(b.String()))
}

// pins are the names below the datapath's folder of the BPF file system.
func pins(dir string) string {
	var names []string
	_ = filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			names = append(names, file)
		}
		return nil // a folder that is not there has no pins
	})
	slices.Sort(names)
	return strings.Join(append(names, ""), "\n")
}

// toolTime bounds how long one of the node's tools may take.
const toolTime = 10 * time.Second

// addTools adds what tools of the node say that no library of ours does, where they are installed.
func (n *Node) addTools(ctx context.Context, a *Archive) {
	for name, command := range map[string][]string{
		"netfilter/nft.txt":            {"nft", "list", "ruleset"},
		"netfilter/iptables-save.txt":  {"iptables-save"},
		"netfilter/ip6tables-save.txt": {"ip6tables-save"},
		"journal.log":                  {"journalctl", "--no-pager", "--lines=5000", "--unit=myelin"},
	} {
		program, err := exec.LookPath(command[0])
		if err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, toolTime)
		out, err := exec.CommandContext(ctx, program, command[1:]...).Output()
		cancel()
		if err != nil {
			a.Fail(name, err)
		}
		if len(out) > 0 {
			a.add(name, out)
		}
	}
}
