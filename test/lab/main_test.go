package labtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"myelin/lab"
)

// env names what the suite takes from its environment.
const (
	envBin    = "MYELIN_BIN"        // folder of myelin and myelin-cni; they are built if it is not set
	envLinks  = "MYELIN_TEST_LINKS" // bpf.datapathMode of tests that do not set it
	envSlow   = "MYELIN_TEST_SLOW"  // by how much everything takes longer than on an idle machine: 10 under emulation
	envRecord = "MYELIN_RECORD"     // 1: write what was measured into bench/results.json
)

func TestMain(m *testing.M) {
	if to := os.Getenv(holdEnv); to != "" { // a process of TestSocketsEndWithTheirBackend
		fmt.Fprintln(os.Stderr, "hold:", hold(to, os.Stdout))
		os.Exit(1)
	}
	os.Exit(suite(m))
}

func suite(m *testing.M) int {
	if os.Getuid() != 0 {
		return m.Run() // every test skips itself
	}
	dir, err := os.MkdirTemp("", "myelin-labtest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := buildInto(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	left := removeLabs()
	for _, what := range left {
		fmt.Fprintln(os.Stderr, "left behind:", what)
	}
	if len(left) > 0 && code == 0 {
		return 1
	}
	return code
}

// binDir is where the programs under test are, for the whole run.
func binDir() string { return os.Getenv(envBin) }

// nextName is a later version of myelin beside the one under test, if the folder has one.
const nextName = "myelin-next"

// buildInto makes the programs once; each test process has its own, so that another build does not change them under
// it.
func buildInto(dir string) error {
	if binDir() != "" {
		return nil
	}
	for _, b := range []struct{ version, out, program string }{
		{"labtest", "myelin", "myelin/cmd/myelin"},
		{"labtest-next", nextName, "myelin/cmd/myelin"},
		{"labtest", "myelin-cni", "myelin/cmd/myelin-cni"},
	} {
		cmd := exec.Command("go", "build", "-ldflags", "-X main.version="+b.version, "-o", filepath.Join(dir, b.out),
			b.program)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build the programs under test: %w: %s", err, out)
		}
	}
	return os.Setenv(envBin, dir)
}

// nextBinary is a later build of myelin, or the same program in a file of other content where there is none.
func nextBinary(t *testing.T) string {
	t.Helper()
	next := filepath.Join(binDir(), nextName)
	if _, err := os.Stat(next); err == nil {
		return next
	}
	data, err := os.ReadFile(filepath.Join(binDir(), "myelin"))
	if err != nil {
		t.Fatal(err)
	}
	next = filepath.Join(t.TempDir(), "next")
	if err := os.WriteFile(next, append(data, "next"...), 0o755); err != nil {
		t.Fatal(err)
	}
	return next
}

// labPrefix begins the names of all labs of this process.
func labPrefix() string { return "s" + strconv.FormatInt(int64(os.Getpid()), 36) + "x" }

// removeLabs takes down what tests that panicked left, and looks for what is there after that.
func removeLabs() []string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var left []string
	names, err := lab.List("")
	if err != nil {
		left = append(left, err.Error())
	}
	for _, name := range names {
		if strings.HasPrefix(name, labPrefix()) {
			left = append(left, "lab "+name)
			if err := lab.Down(ctx, "", name, slog.New(slog.DiscardHandler)); err != nil {
				left = append(left, err.Error())
			}
		}
	}
	return append(left, leftovers(labPrefix())...)
}

// leftovers looks where the kernel would show what belongs to labs whose name begins so, without the lab's own code.
func leftovers(prefix string) []string {
	var left []string
	for _, glob := range []string{
		"/run/netns/" + prefix + "*", "/sys/fs/cgroup/myelin-lab/" + prefix + "*",
		"/sys/fs/cgroup/unified/myelin-lab/" + prefix + "*",
		lab.DefaultDir + "/" + prefix + "*",
	} {
		found, _ := filepath.Glob(glob)
		left = append(left, found...)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/"+prefix) {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		group, err := os.ReadFile(p + "/cgroup")
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		cmdline, _ := os.ReadFile(p + "/cmdline")
		if len(cmdline) > 0 && strings.Contains(string(group), "/myelin-lab/"+prefix) {
			left = append(left, "process "+p+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return left
}

// slow is by how much everything takes longer than on an idle machine.
func slow() int {
	n, err := strconv.Atoi(os.Getenv(envSlow))
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// patience is how long to wait for what takes at most d on an idle machine.
func patience(d time.Duration) time.Duration { return d * time.Duration(slow()) }

// fewer is how often to do what is done n times on an idle machine.
func fewer(n int) int { return max(1, n/slow()) }
