package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// AttachAccept makes all TCP connections in the proxy's network namespace the proxy's, whatever their address and port.
// It is idempotent, and replaces the program of an agent before us without a gap.
func (d *Datapath) AttachAccept(namespace *os.File) error {
	if err := d.attachAccept(namespace); err != nil {
		return fmt.Errorf("attach proxy_accept to the proxy's network namespace: %w", err)
	}
	return nil
}

func (d *Datapath) attachAccept(namespace *os.File) error {
	programs, err := d.loadProxy()
	if err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(namespace.Fd()), &stat); err != nil {
		return err
	}
	pin := filepath.Join(d.options.Dir, "links", "proxy_accept") // no name of a device's link: see Attacher.Pins
	old, err := link.LoadPinnedLink(pin, nil)
	if err == nil {
		defer old.Close()
		if namespaceOf(old) == stat.Ino && old.Update(programs.Accept) == nil {
			return nil
		}
		err = os.Remove(pin) // the namespace is gone
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("open pinned link: %w", err)
	}
	l, err := link.AttachNetNs(int(namespace.Fd()), programs.Accept)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return fmt.Errorf("pin link: %w", err)
	}
	return nil
}

// namespaceOf returns the inode of the network namespace that a link is attached to; 0: it is gone.
func namespaceOf(l link.Link) uint64 {
	info, err := l.Info()
	if err != nil {
		return 0
	}
	if n := info.NetNs(); n != nil {
		return uint64(n.NetnsInode)
	}
	return 0
}
