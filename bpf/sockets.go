package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// socketHook is a program and where a cgroup has it.
type socketHook struct {
	name    string
	at      ebpf.AttachType
	program *ebpf.Program
}

// socketHooks are in the order in which they are attached: a program that translates names must be there first
// wrong.
func (d *Datapath) socketHooks() []socketHook {
	return []socketHook{
		{"getpeername4", ebpf.AttachCgroupInet4GetPeername, d.Getpeername4},
		{"getpeername6", ebpf.AttachCgroupInet6GetPeername, d.Getpeername6},
		{"recvmsg4", ebpf.AttachCGroupUDP4Recvmsg, d.Recvmsg4},
		{"recvmsg6", ebpf.AttachCGroupUDP6Recvmsg, d.Recvmsg6},
		{"connect4", ebpf.AttachCGroupInet4Connect, d.Connect4},
		{"connect6", ebpf.AttachCGroupInet6Connect, d.Connect6},
		{"sendmsg4", ebpf.AttachCGroupUDP4Sendmsg, d.Sendmsg4},
		{"sendmsg6", ebpf.AttachCGroupUDP6Sendmsg, d.Sendmsg6},
		{"bind4", ebpf.AttachCGroupInet4Bind, d.Bind4},
		{"bind6", ebpf.AttachCGroupInet6Bind, d.Bind6},
	}
}

// binds reports whether the hook is one of those that protect node ports.
func (h socketHook) binds() bool {
	return h.at == ebpf.AttachCGroupInet4Bind || h.at == ebpf.AttachCGroupInet6Bind
}

func (d *Datapath) socketPin(name string) string {
	return filepath.Join(d.options.Dir, "sockets", name)
}

// AttachSockets translates what the processes of a cgroup, and of those below it, ask of Services. cgroup is a
// directory of a cgroup2 file system. It is idempotent, and replaces the programs of an agent before us without a gap.
// Connections that exist stay as they are. bind says whether binding is to be asked about as well, which
// Settings.BindProtection decides.
func (d *Datapath) AttachSockets(cgroup string, bind bool) error {
	if err := os.MkdirAll(filepath.Join(d.options.Dir, "sockets"), 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	id, err := cgroupID(cgroup)
	if err != nil {
		return err
	}
	for _, h := range d.socketHooks() {
		if h.binds() && !bind {
			if err := d.detachSocket(h); err != nil {
				return err
			}
			continue
		}
		if err := d.attachSocket(h, cgroup, id); err != nil {
			return fmt.Errorf("attach %s to cgroup %s: %w", h.name, cgroup, err)
		}
	}
	return nil
}

func (d *Datapath) detachSocket(h socketHook) error {
	if err := os.Remove(d.socketPin(h.name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("detach %s: %w", h.name, err)
	}
	return nil
}

func (d *Datapath) attachSocket(h socketHook, cgroup string, id uint64) error {
	pin := d.socketPin(h.name)
	old, err := link.LoadPinnedLink(pin, nil)
	if err == nil {
		defer old.Close()
		if cgroupOf(old) == id && old.Update(h.program) == nil {
			return nil
		}
		if err := os.Remove(pin); err != nil { // the cgroup is gone, or another one is meant now
			return fmt.Errorf("remove stale pin: %w", err)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("open pinned link: %w", err)
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: h.at, Program: h.program})
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return fmt.Errorf("pin link: %w", err)
	}
	return nil
}

// DetachSockets ends what AttachSockets began, in the opposite order.
func (d *Datapath) DetachSockets() error {
	var errs []error
	hooks := d.socketHooks()
	for i := range hooks {
		errs = append(errs, d.detachSocket(hooks[len(hooks)-1-i]))
	}
	return errors.Join(errs...)
}

// cgroupID is what the kernel knows a cgroup by: its inode.
func cgroupID(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, fmt.Errorf("find cgroup %s: %w", dir, err)
	}
	return st.Ino, nil
}

// cgroupOf is the cgroup that a link hangs on, 0 if none.
func cgroupOf(l link.Link) uint64 {
	info, err := l.Info()
	if err != nil || info.Cgroup() == nil {
		return 0
	}
	return info.Cgroup().CgroupId
}

// HaveSetRetval reports whether a program at a socket can choose the error that the application sees (kernel 5.18).
func HaveSetRetval() bool {
	return features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnSetRetval) == nil
}

// NetnsCookie is the kernel's number for the network namespace of this process, 0 before kernel 5.14, which doesn't
// tell.
func NetnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("ask for the network namespace's cookie: %w", err)
	}
	return cookie, nil
}
