package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// netnsDir is where iproute2 keeps named namespaces: `ip netns` shows those of a lab.
const netnsDir = "/run/netns"

func netnsPath(name string) string { return filepath.Join(netnsDir, name) }

// shareNetnsDir makes the directory of named namespaces a shared mount of its own, as ip-netns(8) does before its first
// one, and under its lock. Were it left to that, its mount would cover those of a lab that is up, whose files could
// then not be removed. For the same reason the directory is left as it is if other namespaces are mounted in
// it.
func shareNetnsDir() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return fmt.Errorf("make the directory of network namespaces: %w", err)
	}
	dir, err := os.Open(netnsDir)
	if err != nil {
		return fmt.Errorf("open the directory of network namespaces: %w", err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", netnsDir, err)
	}
	share := func() error {
		if err := unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("make %s a shared mount: %w", netnsDir, err)
		}
		return nil
	}
	if err := share(); !errors.Is(err, unix.EINVAL) {
		return err
	}
	// It is no mount yet.
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("look for network namespaces: %w", err)
	}
	if bytes.Contains(mounts, []byte(" "+netnsDir+"/")) {
		return nil
	}
	if err := unix.Mount(netnsDir, netnsDir, "none", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", netnsDir, err)
	}
	return share()
}

// createNetns makes a named namespace with its loopback up. One that a crash left under that name is an error.
func createNetns(name string) error {
	err := onThread(func() error {
		ns, err := netns.NewNamed(name)
		if err != nil {
			return err
		}
		return ns.Close()
	})
	if err == nil {
		err = raise(name, "lo")
	}
	if err != nil {
		return fmt.Errorf("create network namespace %s: %w", name, err)
	}
	return nil
}

// deleteNetns removes a named namespace, also one whose creation was cut short. None there is no error.
func deleteNetns(name string) error {
	path := netnsPath(name)
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete network namespace %s: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("delete network namespace %s: %w", name, err)
	}
	return nil
}

// netnsOf lists the named namespaces of a lab.
func (l *Lab) netnsNames() ([]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), l.opts.Name+"-") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// enter runs fn on a thread in the named namespace. Processes that fn starts, and sockets that it opens on its own
// goroutine, are in it too.
func enter(name string, fn func() error) error {
	return onThread(func() error {
		f, err := os.Open(netnsPath(name))
		if err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		defer f.Close()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", name, err)
		}
		return fn()
	})
}

// onThread runs fn on a thread that ends with it, so that no other goroutine ever runs in a namespace fn left behind.
func onThread(fn func() error) error {
	errs := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread can't end, and /proc/self shows its namespaces: hold it while another one works.
			errs <- onThread(fn)
			runtime.UnlockOSThread()
			return
		}
		errs <- fn() // locked still when the goroutine ends: the runtime throws the thread away
	}()
	return <-errs
}

// handle opens a netlink socket in a named namespace, and the namespace itself.
func handle(name string) (*netlink.Handle, netns.NsHandle, error) {
	ns, err := netns.GetFromPath(netnsPath(name))
	if err != nil {
		return nil, -1, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, -1, errors.Join(fmt.Errorf("open netlink in %s: %w", name, err), ns.Close())
	}
	return h, ns, nil
}

// raise sets a link up.
func raise(name, link string) error {
	h, ns, err := handle(name)
	if err != nil {
		return err
	}
	defer ns.Close()
	defer h.Close()
	dev, err := h.LinkByName(link)
	if err != nil {
		return fmt.Errorf("find %s in %s: %w", link, name, err)
	}
	if err := h.LinkSetUp(dev); err != nil {
		return fmt.Errorf("set %s in %s up: %w", link, name, err)
	}
	return nil
}

// setSysctls writes net.* settings in a namespace. Those that the kernel does not have are left out.
func setSysctls(name string, values map[string]string) error {
	return enter(name, func() error {
		for key, value := range values {
			err := os.WriteFile(filepath.Join("/proc/sys/net", key), []byte(value), 0o644)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("set net/%s in %s: %w", key, name, err)
			}
		}
		return nil
	})
}
