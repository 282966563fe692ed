package tune

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cpus are the numbers of the machine's CPUs that run.
func (l *list) cpus() []int {
	return parseList(l.read("/sys/devices/system/cpu/online"))
}

// parseList reads "0-3,8"; what it can't read is left out.
func parseList(s string) (numbers []int) {
	const most = 1 << 16
	for part := range strings.SplitSeq(s, ",") {
		first, last, ranged := strings.Cut(strings.TrimSpace(part), "-")
		a, err := strconv.Atoi(first)
		b := a
		if ranged && err == nil {
			b, err = strconv.Atoi(last)
		}
		if err != nil || b-a > most {
			continue
		}
		for n := a; n <= b; n++ {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// names are the entries of a directory below the root that begin with prefix and a digit, by that number.
func (l *list) names(dir, prefix string) []string {
	entries, err := os.ReadDir(filepath.Join(l.Root, dir))
	if err != nil {
		return nil
	}
	number := func(name string) int {
		n, err := strconv.Atoi(strings.TrimPrefix(name, prefix))
		if err != nil || !strings.HasPrefix(name, prefix) {
			return -1
		}
		return n
	}
	var names []string
	for _, e := range entries {
		if number(e.Name()) >= 0 {
			names = append(names, e.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int { return number(a) - number(b) })
	return names
}

func (l *list) cpu() {
	for _, c := range l.names("/sys/devices/system/cpu", "cpu") {
		l.want(File, "governor of "+c, "/sys/devices/system/cpu/"+c+"/cpufreq/scaling_governor", always("performance"),
			text{"the CPU raises its frequency only some time after packets arrive",
				"shorter and more even response times; more power"})
	}
	const preemption = "/sys/kernel/debug/sched/preempt"
	t := text{"a process that gets a packet waits for code of the kernel that is not interrupted",
		"shorter response times on busy CPUs; a few percent of throughput"}
	l.want(File, "preemption model", preemption, l.by("", "full"), t)
	if l.read(preemption) == "" && l.profile == Latency {
		l.manual("preemption model", "not shown: debugfs is not mounted, or the kernel has one model", "full",
			"boot with preempt=full", "boot without preempt=full", t)
	}
}

// needs is what newer kernels have.
func needs() []struct {
	major, minor int
	what         string
} {
	return []struct {
		major, minor int
		what         string
	}{
		{5, 19, "BIG TCP of IPv6"}, {6, 3, "BIG TCP of IPv4"}, {6, 6, "programs on devices by TCX"},
		{6, 7, "netkit devices"},
	}
}

func (l *list) kernel() {
	var major, minor int
	if _, err := fmt.Sscanf(l.Release, "%d.%d", &major, &minor); err != nil {
		return
	}
	var lacking []string
	newest := fmt.Sprintf("%d.%d", major, minor)
	for _, n := range needs() {
		if major < n.major || major == n.major && minor < n.minor {
			lacking = append(lacking, n.what)
			newest = fmt.Sprintf("%d.%d", n.major, n.minor)
		}
	}
	if len(lacking) == 0 {
		l.manual("version", l.Release, l.Release, "", "", text{"has all that Myelin makes use of", "-"})
		return
	}
	l.manual("version", l.Release, newest+" or later", "boot a newer kernel", "boot this one",
		text{"it lacks " + strings.Join(lacking, ", "), "fewer instructions for each packet"})
}
