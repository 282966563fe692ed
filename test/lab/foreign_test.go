package labtest

import (
	"fmt"
	"os/exec"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// foreign is a network namespace that a test made itself, named so that the lab's end removes it.
type foreign string

func (f foreign) Name() string { return string(f) }

func (f foreign) Do(fn func() error) error {
	return ns.WithNetNSPath("/run/netns/"+string(f), func(ns.NetNS) error { return fn() })
}

// command runs a program in the machine's own namespace; it fails the test if that fails.
func (c *cluster) command(args ...string) {
	c.t.Helper()
	if out, err := exec.CommandContext(c.t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
		c.t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// ip runs ip(8) in a node.
func (c *cluster) ip(node string, args ...string) string {
	c.t.Helper()
	out, err := c.Node(node).Exec(c.t.Context(), append([]string{"ip"}, args...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// kernelBefore compares the running kernel's version.
func kernelBefore(major, minor int) bool {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return false
	}
	var a, b int
	if n, _ := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b); n != 2 {
		return false
	}
	return a < major || a == major && b < minor
}
