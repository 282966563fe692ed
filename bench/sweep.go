package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"myelin/config"
)

// Sweep removes what a run left behind whose process is gone, as one that is killed can't tear down: namespaces,
// control groups, folders and the file systems mounted in them.
func Sweep(ctx context.Context) error {
	root, err := (&config.Config{}).Cgroup("/proc")
	if err != nil {
		return err
	}
	return errors.Join(
		sweep("/run/netns", func(path string) error { return ip(ctx, "netns delete "+filepath.Base(path)) }),
		sweep(root, os.Remove),
		sweep(os.TempDir(), func(path string) error {
			if err := unix.Unmount(pinsIn(path), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) &&
				!errors.Is(err, unix.ENOENT) {
				return err
			}
			return os.RemoveAll(path)
		}))
}

// sweep removes entries of a folder that are called mybench-PID-... and whose process is gone.
func sweep(dir string, remove func(path string) error) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		rest, ours := strings.CutPrefix(entry.Name(), "mybench-")
		owner, _, more := strings.Cut(rest, "-")
		if _, bad := strconv.Atoi(owner); !ours || !more || bad != nil {
			continue
		}
		if _, alive := os.Stat("/proc/" + owner); errors.Is(alive, os.ErrNotExist) {
			err = errors.Join(err, remove(filepath.Join(dir, entry.Name())))
		}
	}
	return err
}
