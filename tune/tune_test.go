package tune

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// cards is a Store in memory.
type cards map[string]string

func (c cards) Read(key string) (string, error) {
	value, ok := c[key]
	if !ok {
		return "", fs.ErrNotExist
	}
	return value, nil
}

func (c cards) Write(key, value string) error {
	if strings.HasSuffix(key, "adaptive-rx") {
		return errors.New("not by this driver")
	}
	c[key] = value
	return nil
}

func (c cards) Command(key, value string) string { return "ethtool " + key + " " + value }

// machine has a bond of two cards with two queues each, and four CPUs.
func machine(t *testing.T, more map[string]string) *Machine {
	t.Helper()
	root := t.TempDir()
	files := map[string]string{
		"sys/devices/system/cpu/online":                        "0-3\n",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
		"sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
		"sys/devices/system/cpu/cpuidle/x":                     "",
		"sys/kernel/debug/sched/preempt":                       "none (voluntary) full lazy\n",
		"sys/class/net/bond0/lower_eth0/x":                     "",
		"sys/class/net/bond0/lower_eth1/x":                     "",
		"sys/class/net/bond0/mtu":                              "1500\n",
		"proc/sys/net/core/rps_sock_flow_entries":              "0\n",
		"proc/sys/net/core/rmem_max":                           "212992\n",
		"proc/sys/net/core/wmem_max":                           "134217728\n",
		"proc/sys/net/ipv4/tcp_rmem":                           "4096\t131072\t6291456\n",
		"proc/sys/net/core/busy_poll":                          "0\n",
		"proc/sys/net/core/default_qdisc":                      "fq_codel\n",
		"proc/1/comm":                                          "init\n",
	}
	for n, card := range []string{"eth0", "eth1"} {
		dir := "sys/class/net/" + card
		files[dir+"/device/local_cpulist"] = "2-3\n"
		for i := range 2 {
			irq := fmt.Sprint(40 + 10*n + i)
			files[dir+"/device/msi_irqs/"+irq] = "msix\n"
			files["proc/irq/"+irq+"/smp_affinity_list"] = "0-3\n"
			files[fmt.Sprintf("%s/queues/rx-%d/rps_cpus", dir, i)] = "00000000\n"
			files[fmt.Sprintf("%s/queues/rx-%d/rps_flow_cnt", dir, i)] = "0\n"
			files[fmt.Sprintf("%s/queues/tx-%d/xps_cpus", dir, i)] = "0000000f\n"
		}
	}
	for path, text := range more {
		files[path] = text
	}
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return &Machine{Root: root, Wires: []string{"bond0"}, Release: "6.1.5-amd64", Devices: cards{
		"eth0 rx-ring": "256", "eth0 rx-ring-max": "4096", "eth0 gro": "off", "eth0 lro": "on", "eth0 rx-usecs": "3",
		"eth0 adaptive-rx": "off", "bond0 mtu-max": "9194", "eth0 qdisc": "pfifo_fast", "eth1 qdisc": "mq",
	}}
}

// differing are the settings that a profile would change, "AREA NAME: CURRENT → RECOMMENDED".
func differing(m *Machine, p Profile) (lines []string) {
	for _, e := range List(m, p) {
		if e.Differs() {
			lines = append(lines, fmt.Sprintf("%s %s: %s → %s", e.Area, e.Name, e.Current, e.Recommended))
		}
	}
	return lines
}

func TestList(t *testing.T) {
	both := []string{
		"cpu governor of cpu0: powersave → performance",
		"kernel version: 6.1.5-amd64 → 6.7 or later",
		"irq interrupt 40 of eth0: 0-3 → 2",
		"irq interrupt 51 of eth1: 0-3 → 3",
		"queues XPS of eth0 tx-0: 0000000f → 5",
		"queues XPS of eth1 tx-1: 0000000f → a",
		"nic gro of eth0: off → on",
		"nic lro of eth0: on → off",
		"qdisc qdisc of eth0: pfifo_fast → fq",
		"qdisc qdisc of new devices: fq_codel → fq",
		"mtu MTU of bond0: 1500 → 9000",
	}
	for profile, want := range map[Profile][]string{
		Throughput: append([]string{
			"queues RPS of eth0 rx-1: 00000000 → f", "queues RFS of eth1 rx-0: 0 → 16384",
			"queues flows of RFS: 0 → 32768", "nic rx-ring of eth0: 256 → 4096", "nic adaptive-rx of eth0: off → on",
			"tcp net.core.rmem_max: 212992 → 67108864",
			"tcp net.ipv4.tcp_rmem: 4096 131072 6291456 → 4096 131072 67108864",
		}, both...),
		Latency: append([]string{
			"cpu preemption model: voluntary → full", "nic rx-usecs of eth0: 3 → 0", "tcp net.core.busy_poll: 0 → 50",
		}, both...),
	} {
		got := differing(machine(t, nil), profile)
		for _, line := range want {
			if !slices.Contains(got, line) {
				t.Errorf("%s lacks %q", profile, line)
			}
		}
		// Twice as many interrupts, XPS, RPS and RFS as are named.
		if n := map[Profile]int{Throughput: len(want) + 4 + 6, Latency: len(want) + 4}[profile]; len(got) != n {
			t.Errorf("%s has %d settings that differ, want %d:\n%s", profile, len(got), n, strings.Join(got, "\n"))
		}
	}
}

// What irqbalance does is left to it; for latency it is in the way.
func TestIRQBalance(t *testing.T) {
	m := machine(t, map[string]string{"proc/77/comm": "irqbalance\n"})
	for profile, want := range map[Profile]bool{Throughput: false, Latency: true} {
		got := strings.Join(differing(m, profile), "\n")
		if strings.Contains(got, "irqbalance: running → stopped") != want || strings.Contains(got, "interrupt 40") {
			t.Errorf("%s:\n%s", profile, got)
		}
	}
}

func TestEntriesAreComplete(t *testing.T) {
	for _, p := range []Profile{Throughput, Latency} {
		for _, e := range List(machine(t, nil), p) {
			if e.Name == "" || e.Current == "" || e.Reason == "" || e.Effect == "" {
				t.Errorf("%s: %+v", p, e)
			}
			if e.Differs() != (e.Do != "") || e.Differs() != (e.Undo != "") {
				t.Errorf("%s: %+v", p, e)
			}
		}
	}
}

func TestCommands(t *testing.T) {
	for key, want := range map[string]string{
		"/proc/sys/net/core/rmem_max":           "sysctl -w net.core.rmem_max='1'",
		"/proc/sys/net/ipv4/conf/a.b/rp_filter": "echo '1' > /proc/sys/net/ipv4/conf/a.b/rp_filter",
		"/sys/class/net/e/queues/rx-0/rps_cpus": "echo '1' > /sys/class/net/e/queues/rx-0/rps_cpus",
	} {
		if got := (files{"/"}).Command(key, "1"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestMask(t *testing.T) {
	for _, c := range []struct {
		cpus          []int
		current, want string
	}{
		{[]int{0, 1}, "00000003", "00000003"}, {[]int{0, 33}, "0", "2,00000001"}, {nil, "ff,00000000", "0"},
		{[]int{32, 64}, "00000001,00000001,00000000", "00000001,00000001,00000000"},
	} {
		if got := wantMask(c.cpus)(c.current); got != c.want {
			t.Errorf("%v: got %q, want %q", c.cpus, got, c.want)
		}
	}
}
