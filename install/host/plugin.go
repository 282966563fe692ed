// Package host is what Myelin puts on the file systems and into the kernel of a node that it comes to, and takes away
// from one that it leaves: the CNI plugin's binary, mounts, and all that an agent has left when it runs no more.
package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"myelin/cni"
	"myelin/cni/plugin"
)

// InstallPlugin copies the plugin's binary from a file into dir, as one step: a runtime that executes it meanwhile gets
// the old or the new one. It reports whether it was another one, or none, before. Where there is no plugin loopback,
// without which some runtimes start no pod, the binary is that one, too.
func InstallPlugin(from, dir string) (changed bool, err error) {
	if changed, err = copyPlugin(from, dir); err != nil {
		return false, err
	}
	err = os.Symlink(cni.PluginName, filepath.Join(dir, plugin.LoopbackName))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return changed, fmt.Errorf("install the CNI plugin %s: %w", plugin.LoopbackName, err)
	}
	return changed, nil
}

func copyPlugin(from, dir string) (changed bool, err error) {
	data, err := os.ReadFile(from)
	if err != nil {
		return false, fmt.Errorf("read the CNI plugin: %w", err)
	}
	to := filepath.Join(dir, cni.PluginName)
	if have, err := os.ReadFile(to); err == nil && bytes.Equal(have, data) && executable(to) {
		return false, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, fmt.Errorf("install the CNI plugin: %w", err)
	}
	f, err := os.CreateTemp(dir, "."+cni.PluginName+"-*")
	if err != nil {
		return false, fmt.Errorf("install the CNI plugin: %w", err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(0o755)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), to)
	}
	if err != nil {
		return false, fmt.Errorf("install the CNI plugin: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return true, nil
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm() == 0o755
}

// removePlugin removes the binary, loopback if that is ours, and what a crash of InstallPlugin left.
func removePlugin(dir string) (removed bool, err error) {
	left, err := filepath.Glob(filepath.Join(dir, "."+cni.PluginName+"-*"))
	if err != nil {
		return false, err
	}
	left = append(left, filepath.Join(dir, cni.PluginName))
	loopback := filepath.Join(dir, plugin.LoopbackName)
	if to, err := os.Readlink(loopback); err == nil && to == cni.PluginName {
		left = append(left, loopback)
	}
	var errs []error
	for _, path := range left {
		err := os.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		removed, errs = removed || err == nil, append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("remove the CNI plugin: %w", err)
	}
	return removed, nil
}
