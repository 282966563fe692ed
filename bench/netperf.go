package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Test is one kind of traffic.
type Test struct {
	// Name is the last part of the names of its results.
	Name string
	// netperf's name, and what bounds a run that is bounded by count: transactions, or bytes.
	netperf string
	count   int
	unit    string
	options []string // of the test
}

// streamUnit is the unit of a stream.
const streamUnit = "Mbit/s"

// Count returns how many transactions or bytes a run in the VM has.
func (t Test) Count() int { return t.count }

// Tests are all kinds of traffic, in the order they are run in.
func Tests() []Test {
	return []Test{
		{Name: "rr", netperf: "TCP_RR", count: 2000, unit: "1/s"},
		{Name: "crr", netperf: "TCP_CRR", count: 400, unit: "1/s"},
		{Name: "stream", netperf: "TCP_STREAM", count: 40_000_000, unit: streamUnit},
		{Name: "udp_rr", netperf: "UDP_RR", count: 2000, unit: "1/s"},
		{Name: "stream80k", netperf: "TCP_STREAM", count: 80_000_000, unit: streamUnit,
			options: []string{"-m", "80000"}},
		{Name: "rr80k", netperf: "TCP_RR", count: 400, unit: "1/s", options: []string{"-r", "80000,80000"}},
	}
}

// warmUp is the part of a counted run that is run before it, unmeasured: neighbours, routes and flow rows are then
// there.
const warmUp = 20

// netperf runs the tool of that name, with its binaries from a folder, or from $PATH when the folder is empty.
type netperf struct {
	dir string
	// seconds bounds a run by time; 0 bounds it by the test's count.
	seconds int
}

func (n netperf) tool(name string) string { return filepath.Join(n.dir, name) }

// command is a tool in a place.
func (n netperf) command(ctx context.Context, at Place, tool string, args ...string) *exec.Cmd {
	argv := append([]string{"ip", "netns", "exec", at.Netns, n.tool(tool)}, args...)
	if at.Cgroup != "" {
		argv = append([]string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(at.Cgroup, "cgroup.procs")},
			argv...)
	}
	return exec.CommandContext(ctx, argv[0], argv[1:]...)
}

// serve starts netserver for a path and returns when it listens; stop ends it and the processes it forked.
func (n netperf) serve(ctx context.Context, path Path) (stop func(), err error) {
	stop, err = daemon(n.command(ctx, path.Server, "netserver", "-D", familyOption(path.Listen), "-L",
		path.Listen.String()))
	if err != nil {
		return nil, fmt.Errorf("start netserver: %w", err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		out, err := exec.CommandContext(ctx, "ip", "netns", "exec", path.Server.Netns, "ss", "-Hltn",
			fmt.Sprintf("sport = :%d", controlPort)).Output()
		if err == nil && len(out) > 0 {
			return stop, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			stop()
			return nil, errors.Join(fmt.Errorf("netserver in %s doesn't listen", path.Server.Netns), err, ctx.Err())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// daemon starts a command that dies with this process, also when that is killed. The kernel takes the death of the
// thread that started it for the death of the process, so that thread is kept until the command ends.
//
// The command gets a session of its own, as daemons have: the scheduler groups by session, and a client and a server of
// one group would switch between each other more cheaply than processes of two nodes ever do.
func daemon(cmd *exec.Cmd) (stop func(), err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
	}, nil
}

// run measures once; the value is in the test's unit.
func (n netperf) run(ctx context.Context, path Path, test Test) (float64, error) {
	bound := n.seconds
	if n.seconds == 0 {
		bound = -test.count
		if _, err := n.again(ctx, path, test, bound/warmUp); err != nil {
			return 0, err
		}
	}
	return n.again(ctx, path, test, bound)
}

// again is once, repeated in virtual time where it fails: netperf waits for netserver for two minutes, which may pass
// at once while the VM waits for its host.
func (n netperf) again(ctx context.Context, path Path, test Test, bound int) (value float64, err error) {
	const times = 5
	for range times {
		value, err = n.once(ctx, path, test, bound)
		if err == nil || n.seconds != 0 || ctx.Err() != nil {
			break
		}
	}
	return value, err
}

func (n netperf) once(ctx context.Context, path Path, test Test, bound int) (float64, error) {
	limit := 5 * time.Minute
	if n.seconds == 0 { // virtual time may pass by minutes while the VM waits for its host
		limit = 24 * time.Hour
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	control := path.Control
	if control == 0 {
		control = controlPort
	}
	args := []string{familyOption(path.Target), "-H", path.Target.String(), "-p", strconv.Itoa(int(control)),
		"-T", "0,0",
		"-t", test.netperf, "-l", strconv.Itoa(bound), "-P", "0", "--", "-k", "THROUGHPUT"}
	args = append(args, test.options...)
	if path.Port != 0 {
		args = append(args, "-P", fmt.Sprintf(",%d", path.Port))
	}
	out, err := n.command(ctx, path.Client, "netperf", args...).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("netperf %s to %s: %w: %s", test.netperf, path.Target, err, strings.TrimSpace(string(out)))
	}
	return parseThroughput(string(out))
}

// parseThroughput reads netperf's keyed output: transactions a second, or 10^6 bits a second for a stream.
func parseThroughput(out string) (float64, error) {
	for line := range strings.Lines(out) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "THROUGHPUT="); ok {
			number, err := strconv.ParseFloat(value, 64)
			if err == nil && number > 0 {
				return number, nil
			}
		}
	}
	return 0, fmt.Errorf("netperf printed no throughput: %q", out)
}

func familyOption(addr netip.Addr) string {
	if addr.Is6() {
		return "-6"
	}
	return "-4"
}
