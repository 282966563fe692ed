package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroup is a control group of version 2, by its directory. No controller is switched on: groups say whose a process is
// (for BPF socket hooks as for Down), and limit nothing.
type cgroup string

// cgroupRoot finds the version 2 hierarchy in a mount table.
func cgroupRoot(mounts string) (cgroup, error) {
	f, err := os.Open(mounts)
	if err != nil {
		return "", fmt.Errorf("find cgroup2: %w", err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 2 && fields[2] == "cgroup2" {
			return cgroup(fields[1]), nil
		}
	}
	return "", errors.New("find cgroup2: no such file system is mounted")
}

func (c cgroup) join(elem ...string) cgroup {
	return cgroup(filepath.Join(append([]string{string(c)}, elem...)...))
}

func (c cgroup) create() error {
	if err := os.MkdirAll(string(c), 0o755); err != nil {
		return fmt.Errorf("create control group: %w", err)
	}
	return nil
}

// groups lists the group and all below it, the deepest first.
func (c cgroup) groups() []cgroup {
	var all []cgroup
	// Groups may vanish while they are listed; those that stay are found.
	_ = filepath.WalkDir(string(c), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, cgroup(path))
		}
		return nil
	})
	slices.Reverse(all)
	return all
}

// pids lists the processes in the group and below.
func (c cgroup) pids() []int {
	var pids []int
	for _, g := range c.groups() {
		data, err := os.ReadFile(string(g.join("cgroup.procs")))
		if err != nil {
			continue // removed since
		}
		for field := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// signal sends sig to each process in the group and below.
func (c cgroup) signal(sig unix.Signal) {
	for _, pid := range c.pids() {
		_ = unix.Kill(pid, sig) // one that has ended since is what we want
	}
}

// kill ends every process in the group and below, and returns when none is left. The group is of no more use then:
// Linux (seen on 6.18) goes on to kill what clone3 puts into a group that was killed once. Remove it, and create it
// anew.
func (c cgroup) kill(ctx context.Context) error {
	for {
		// cgroup.kill (Linux 5.14) can't be outrun by fork; before it, repeat until it is empty.
		if os.WriteFile(string(c.join("cgroup.kill")), []byte("1"), 0o200) != nil {
			c.signal(unix.SIGKILL)
		}
		pids := c.pids()
		if len(pids) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kill processes %v of %s: %w", pids, c, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// remove deletes the group and all below it. Their processes must have ended; the kernel may take a moment to notice.
func (c cgroup) remove(ctx context.Context) error {
	for {
		var errs []error
		for _, g := range c.groups() {
			if err := unix.Rmdir(string(g)); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove control group %s: %w", g, err))
			}
		}
		if len(errs) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(errs...)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// clear kills the processes of a group and removes it, in a few seconds at most.
func (c cgroup) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := c.kill(ctx); err != nil {
		return err
	}
	return c.remove(ctx)
}
