package tune

import (
	"strconv"
	"strings"
)

// atLeast recommends a number, or what is there if that is larger.
func atLeast(least int) func(string) string {
	return func(current string) string {
		if n, err := strconv.Atoi(current); err == nil && n >= least {
			return current
		}
		return strconv.Itoa(least)
	}
}

// lastAtLeast does that with the last of three numbers.
func lastAtLeast(least int) func(string) string {
	return func(current string) string {
		f := strings.Fields(current)
		if len(f) != 3 {
			return current
		}
		f[2] = atLeast(least)(f[2])
		return strings.Join(f, " ")
	}
}

// tcp are sysctls of sockets.
func (l *list) tcp() {
	const buffer, poll = 64 << 20, "50"
	sysctl := func(name string, recommend func(string) string, t text) {
		l.want(File, strings.ReplaceAll(name, "/", "."), "/proc/sys/"+name, recommend, t)
	}
	memory := text{"a connection has at most this much in flight: bandwidth times round-trip time",
		"full speed of single connections over long distances"}
	if l.profile == Throughput {
		sysctl("net/core/rmem_max", atLeast(buffer), memory)
		sysctl("net/core/wmem_max", atLeast(buffer), memory)
		sysctl("net/ipv4/tcp_rmem", lastAtLeast(buffer), memory)
		sysctl("net/ipv4/tcp_wmem", lastAtLeast(buffer), memory)
		sysctl("net/core/netdev_budget", atLeast(600), text{"how many packets a CPU takes from cards at a time",
			"fewer losses in bursts"})
	}
	sysctl("net/core/netdev_max_backlog", atLeast(16384), text{
		"packets that wait for a CPU, of pods and with RPS; more are lost", "fewer losses in bursts"})
	sysctl("net/core/somaxconn", atLeast(4096), text{"connections that wait for a server to accept them",
		"no refused connections when many clients come at once"})
	sysctl("net/ipv4/tcp_slow_start_after_idle", always("0"), text{
		"a connection that was idle begins slowly again", "the first answers after a pause come at full speed"})
	busy := text{"a process that waits for a packet asks the card itself for so many microseconds",
		"latency: no interrupt and no wake-up; CPU time while waiting"}
	sysctl("net/core/busy_poll", l.by("0", poll), busy)
	sysctl("net/core/busy_read", l.by("0", poll), busy)
}
