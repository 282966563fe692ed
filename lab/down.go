package lab

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Down removes a lab under dir ("" means DefaultDir) and all that belongs to it, whatever state it is in; none of that
// name is no error. A process that is still building it is waited for, until ctx ends.
func Down(ctx context.Context, dir, name string, log *slog.Logger) error {
	l, err := attach(Options{Name: name, Dir: dir, Log: log})
	if err != nil {
		return err
	}
	return l.Down(ctx)
}

// Down removes the lab and all that belongs to it: processes first, whatever they do; then namespaces, mounts,
// directories and control groups.
func (l *Lab) Down(ctx context.Context) error {
	unlock, err := l.waitLock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return l.remove(ctx)
}

// waitLock waits until no Up or Down works on the lab.
func (l *Lab) waitLock(ctx context.Context) (unlock func(), err error) {
	for {
		unlock, err := l.lock(unix.LOCK_EX | unix.LOCK_NB)
		switch {
		case err == nil:
			return unlock, nil
		case errors.Is(err, os.ErrNotExist):
			return func() {}, nil // no directory: it is not being built
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// remove is Down without the lock. It goes on after an error: the more is gone, the better the next try. The control
// group goes last, as it marks a lab whose directory is lost.
func (l *Lab) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if l.stop != nil {
		l.stop()
		l.done.Wait()
	}
	var errs []error
	for _, step := range []func(context.Context) error{
		l.cg.kill, l.killStrays, l.unmountAll, l.deleteAllNetns, l.removeDir, l.cg.remove,
	} {
		errs = append(errs, step(ctx))
	}
	// Other labs may have groups there; then it stays.
	_ = unix.Rmdir(filepath.Dir(string(l.cg)))
	_ = os.Remove(l.opts.Dir)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove lab %s: %w", l.Name(), err)
	}
	return nil
}

// killStrays ends processes that left the control group but are in one of the lab's namespaces, such as a shell
// that a user started there by `ip netns exec`.
func (l *Lab) killStrays(ctx context.Context) error {
	names, err := l.netnsNames()
	if err != nil {
		return err
	}
	inodes := map[uint64]bool{}
	for _, name := range names {
		var st unix.Stat_t
		if unix.Stat(netnsPath(name), &st) == nil {
			inodes[st.Ino] = true
		}
	}
	for {
		strays := processesIn(inodes)
		if len(strays) == 0 {
			return nil
		}
		for _, p := range strays {
			if err := p.signal(unix.SIGKILL); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kill processes %v: %w", strays, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// processesIn finds processes by the inode numbers of their network namespaces, this one not.
func processesIn(inodes map[uint64]bool) []Process {
	entries, err := os.ReadDir("/proc")
	if err != nil || len(inodes) == 0 {
		return nil
	}
	var found []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p := processOf(pid)
		var st unix.Stat_t
		if unix.Stat(filepath.Join("/proc", e.Name(), "ns/net"), &st) != nil || !inodes[st.Ino] {
			continue
		}
		// Numbers of the nsfs are unique among namespaces that live, and files of other systems are not looked at.
		if p.Alive() {
			found = append(found, p)
		}
	}
	return found
}

// unmountAll unmounts what is mounted below the lab's directory.
func (l *Lab) unmountAll(context.Context) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	var points []string
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 4 && strings.HasPrefix(fields[4], l.dir+"/") {
			points = append(points, fields[4])
		}
	}
	slices.SortFunc(points, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	var errs []error
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

func (l *Lab) deleteAllNetns(context.Context) error {
	names, err := l.netnsNames()
	errs := []error{err}
	for _, name := range names {
		errs = append(errs, deleteNetns(name))
	}
	return errors.Join(errs...)
}

func (l *Lab) removeDir(context.Context) error { return os.RemoveAll(l.dir) }
