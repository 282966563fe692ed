package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// cgroupDir is where control groups are mounted below the run directory, since what a container has of them may be a
// part only.
const cgroupDir = "cgroup2"

// Mount mounts a BPF file system at bpf and the version 2 hierarchy of control groups at cgroup where they are not; an
// empty path is left out. It returns what it did. A hierarchy shows as its root what is the root of the caller's
// namespace of control groups.
func Mount(bpf, cgroup string) (done []string, err error) {
	for _, one := range []struct {
		dir, kind string
		magic     int64
	}{{bpf, "bpf", unix.BPF_FS_MAGIC}, {cgroup, "cgroup2", unix.CGROUP2_SUPER_MAGIC}} {
		if one.dir == "" || isMounted(one.dir, one.magic) {
			continue
		}
		if err := os.MkdirAll(one.dir, 0o700); err != nil {
			return done, fmt.Errorf("mount %s: %w", one.kind, err)
		}
		if err := unix.Mount("none", one.dir, one.kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return done, fmt.Errorf("mount %s at %s: %w", one.kind, one.dir, err)
		}
		done = append(done, fmt.Sprintf("mounted %s at %s", one.kind, one.dir))
	}
	return done, nil
}

func isMounted(dir string, magic int64) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && int64(st.Type) == magic
}

// unmountCgroup takes away what Mount made below the run directory.
func unmountCgroup(runDir string) (removed bool, err error) {
	dir := filepath.Join(runDir, cgroupDir)
	if isMounted(dir, unix.CGROUP2_SUPER_MAGIC) {
		err = unix.Unmount(dir, unix.MNT_DETACH)
		removed = err == nil
	}
	if err == nil {
		err = unix.Rmdir(dir)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return removed, fmt.Errorf("unmount %s: %w", dir, err)
	}
	return removed, nil
}
