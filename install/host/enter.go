package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Enter runs this program again, with other arguments, where the host's process 1 is: among its file systems and
// control groups. proc is the host's /proc. A container gets to the paths and the tools of its node so, whatever it has
// of its own; it needs CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE. The error is an *exec.ExitError where the
// program has failed.
func Enter(proc string, args []string) error {
	failed := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and no other goroutine comes to run in its namespaces.
		runtime.LockOSThread()
		failed <- enter(proc, args)
	}()
	return <-failed
}

func enter(proc string, args []string) error {
	kinds := []struct {
		name string
		flag int
	}{{"cgroup", unix.CLONE_NEWCGROUP}, {"mnt", unix.CLONE_NEWNS}} // the last one takes proc away
	var fds []int
	for _, kind := range kinds {
		path := filepath.Join(proc, "1/ns", kind.name)
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open the host's namespace %s: %w", path, err)
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	// Threads share root and working directory, and can't change the mount namespace while they do.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("enter the host's namespaces: %w", err)
	}
	for i, kind := range kinds {
		if err := unix.Setns(fds[i], kind.flag); err != nil {
			return fmt.Errorf("enter the host's namespace %s: %w", kind.name, err)
		}
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env, cmd.Dir = append(os.Environ(), "PATH=/usr/sbin:/usr/bin:/sbin:/bin"), "/"
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("run among the host's files: %w", err)
	}
	return err
}
