package lab

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// onFreshMachine runs a test in processes whose mounts are their own and whose /run is empty: one where mounts are
// private, as in a container, and one where they are shared, as systemd has them.
func onFreshMachine(t *testing.T, test func(t *testing.T)) {
	if os.Getuid() != 0 {
		t.Skip("needs root for mounts")
	}
	for name, propagation := range map[string]uintptr{"private": unix.MS_PRIVATE, "shared": unix.MS_SHARED} {
		t.Run(name, func(t *testing.T) {
			if isFreshMachine(t, propagation) {
				test(t)
			}
		})
	}
}

// isFreshMachine reports whether this is the process; elsewhere it runs it.
func isFreshMachine(t *testing.T, propagation uintptr) bool {
	const key = "LAB_TEST_MOUNTS"
	if os.Getenv(key) == t.Name() {
		for unix.Unmount(netnsDir, unix.MNT_DETACH) == nil {
		}
		if err := unix.Mount("run", "/run", "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("", "/run", "", propagation, ""); err != nil {
			t.Fatal(err)
		}
		return true
	}
	t.Parallel()
	only := "-test.run=^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", only, "-test.v")
	cmd.Env = append(os.Environ(), key+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// netnsMounts are the mount points at and below the directory of named namespaces, with " shared" behind those that
// are.
func netnsMounts(t *testing.T) (list []string) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		point := strings.Fields(line)[4] // proc_pid_mountinfo(5)
		if !strings.HasPrefix(point, netnsDir) {
			continue
		}
		if strings.Contains(line, " shared:") {
			point += " shared"
		}
		list = append(list, point)
	}
	return list
}

func ipNetns(t *testing.T, verb, name string) {
	t.Helper()
	if out, err := exec.Command("ip", "netns", verb, name).CombinedOutput(); err != nil {
		t.Errorf("ip netns %s %s: %v: %s", verb, name, err, out)
	}
}

// TestForeignNetns: a namespace that another program makes beside labs, the first by `ip netns` on the machine, does
// not keep them from being removed, nor they it.
func TestForeignNetns(t *testing.T) { onFreshMachine(t, testForeignNetns) }

func testForeignNetns(t *testing.T) {
	all := []Options{testOptions(t, hostOnly), testOptions(t, hostOnly)}
	var labs sync.WaitGroup
	for _, opts := range all {
		labs.Go(func() {
			if _, err := Up(t.Context(), opts); err != nil {
				t.Error(err)
			}
		})
	}
	labs.Wait()
	ipNetns(t, "add", "other")
	for _, opts := range all {
		down(t, opts)
	}
	ipNetns(t, "delete", "other")
	if got := strings.Join(netnsMounts(t), ", "); got != netnsDir+" shared" {
		t.Errorf("mounts: %s", got)
	}
}

// hostOnly is a node without pods.
const hostOnly = `
apiVersion: v1
kind: Node
metadata: {name: a}
status: {addresses: [{type: InternalIP, address: 192.168.9.1}, {type: InternalIP, address: "fd00:9::1"}]}
`

// TestShareNetnsDir: there is one mount, however many make it at once and again.
func TestShareNetnsDir(t *testing.T) { onFreshMachine(t, testShareNetnsDir) }

func testShareNetnsDir(t *testing.T) {
	for range 20 {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if err := shareNetnsDir(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if got := strings.Join(netnsMounts(t), ", "); got != netnsDir+" shared" {
			t.Fatalf("mounts: %s", got)
		}
		if err := unix.Unmount(netnsDir, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestShareNetnsDirOfOthers: a mount over namespaces that are there already would keep their owner from removing them.
func TestShareNetnsDirOfOthers(t *testing.T) { onFreshMachine(t, testShareNetnsDirOfOthers) }

func testShareNetnsDirOfOthers(t *testing.T) {
	if err := createNetns("before"); err != nil {
		t.Fatal(err)
	}
	if err := shareNetnsDir(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(netnsMounts(t), ", "); strings.TrimSuffix(got, " shared") != netnsPath("before") {
		t.Errorf("mounts: %s", got)
	}
	if err := deleteNetns("before"); err != nil {
		t.Error(err)
	}
	// With the last of them gone, the next lab makes the mount.
	if err := shareNetnsDir(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(netnsMounts(t), ", "); got != netnsDir+" shared" {
		t.Errorf("mounts: %s", got)
	}
}
