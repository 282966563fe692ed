package host

import (
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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// CiliumOptions of CleanCilium: where Cilium keeps what, as its chart has it.
type CiliumOptions struct {
	RunDir    string   // daemon.runPath
	BPFRoot   string   // where it mounts the BPF file system
	Cgroups   []string // mounts of control groups of version 2 that it may have its programs on
	ConfPath  string   // cni.confPath
	BinPath   string   // cni.binPath
	SysctlDir string   // of files that systemd reads
	Proc      string
	// Force cuts pods off that run still.
	Force bool
	// Patience is how long to wait for the agent and the pods to end, before Force.
	Patience time.Duration
	// Say is told of each thing that is removed.
	Say func(format string, args ...any)
}

// DefaultCilium is where Cilium's chart has things by default, and what it puts into the machine's own places.
func DefaultCilium() CiliumOptions {
	const run = "/run/cilium"
	return CiliumOptions{
		RunDir: run, BPFRoot: "/sys/fs/bpf", Cgroups: []string{filepath.Join(run, ciliumCgroup), "/sys/fs/cgroup",
			"/sys/fs/cgroup/unified"},
		ConfPath: "/etc/cni/net.d", BinPath: "/opt/cni/bin", SysctlDir: "/etc/sysctl.d", Proc: "/proc",
	}
}

// Names that Cilium gives to what it makes.
const (
	ciliumAgent   = "cilium-agent"
	ciliumCgroup  = "cgroupv2" // in its run directory
	ciliumPlugin  = "cilium-cni"
	ciliumSysctls = "99-zzz-override_cilium.conf"
)

// pluginEnd is how long a call of the plugin may take that has begun before its agent ended.
const pluginEnd = time.Minute

// CleanCilium removes what Cilium leaves on a node when its agent has ended: the CNI configuration and plugin; programs
// of devices and of control groups; maps; devices, routes and rules; chains and sets, by the node's own tools; files.
// Programs on control groups would translate Services by maps that are not updated. While the agent or pods of it run
// nothing is touched, and the error says so, a *podsRunError for pods. Configurations of other networks that Cilium put
// aside (.cilium_bak) stay aside. Kernel parameters stay as Cilium set them. It can be repeated. The network namespace
// is that of the process.
func CleanCilium(ctx context.Context, o CiliumOptions) error {
	if err := o.ended(ctx); err != nil {
		return err
	}
	if err := o.leaveRuntime(); err != nil {
		return err
	}
	// A plugin that waits for the agent would write its log anew; it gives up by itself.
	if err := within(ctx, pluginEnd, o.Say, func() error { return o.runs(ciliumPlugin) }); ctx.Err() != nil {
		return err
	}
	handle, err := netlink.NewHandle()
	if err != nil {
		return fmt.Errorf("open rtnetlink: %w", err)
	}
	defer handle.Close()
	errs := []error{o.dropFilters(handle), o.dropPins(), o.dropSockets(ctx), o.dropLinks(handle), o.dropRoutes(handle)}
	tools, err := cleanChains(ctx, owner{name: "Cilium", prefixes: []string{"CILIUM_", "OLD_CILIUM_"}}, o.Say)
	if !tools {
		o.Say("no iptables tools on this node: chains CILIUM_*, which the tools of Cilium's image make, stay until " +
			"it is booted again")
	}
	errs = append(errs, err, cleanSets(ctx, owner{name: "Cilium", prefixes: []string{"cilium_"}}, o.Say))
	if err := errors.Join(errs...); err != nil {
		return err // its files may be of use for another try
	}
	return o.removeFiles()
}

// ended waits until neither the agent runs nor pods do. The agent comes first: it could take new pods.
func (o CiliumOptions) ended(ctx context.Context) error {
	end := time.Now().Add(o.Patience)
	if err := within(ctx, o.Patience, o.Say, o.agentRuns); err != nil {
		return err
	}
	return podsEnd(ctx, isCiliumPod, time.Until(end), o.Force, o.Say)
}

// agentRuns is an error if Cilium's agent is on this node. Its files don't tell: they stay after a crash, and have a
// number of its own container's.
func (o CiliumOptions) agentRuns() error {
	err := o.runs(ciliumAgent)
	if err != nil {
		return fmt.Errorf("%w: keep it off this node first", err)
	}
	return nil
}

// runs is an error if a process of a name is in this network namespace.
func (o CiliumOptions) runs(name string) error {
	own, err := os.Readlink(filepath.Join(o.Proc, "self/ns/net"))
	if err != nil {
		return fmt.Errorf("look for %s: %w", name, err)
	}
	entries, err := os.ReadDir(o.Proc)
	if err != nil {
		return fmt.Errorf("look for %s: %w", name, err)
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		comm, err := os.ReadFile(filepath.Join(o.Proc, e.Name(), "comm"))
		if err != nil || strings.TrimSpace(string(comm)) != name {
			continue
		}
		switch at, err := os.Readlink(filepath.Join(o.Proc, e.Name(), "ns/net")); {
		case errors.Is(err, fs.ErrNotExist) || err == nil && at != own: // it has ended, or is another node's in a test
		default:
			return fmt.Errorf("%s runs, process %s", name, e.Name())
		}
	}
	return nil
}

// isCiliumPod tells links to pods by their names: lxc and twelve digits, or that of the agent's own pod.
func isCiliumPod(l netlink.Link) bool {
	code, ok := strings.CutPrefix(l.Attrs().Name, "lxc")
	return ok && (code == "_health" || len(code) == 12 && strings.Trim(code, "0123456789abcdef") == "") &&
		(l.Type() == "veth" || l.Type() == "netkit")
}

// leaveRuntime removes the configuration before the plugin that it names.
func (o CiliumOptions) leaveRuntime() error {
	entries, err := os.ReadDir(o.ConfPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove Cilium's CNI configuration: %w", err)
	}
	paths := []string{}
	for _, e := range entries {
		name, isConf := strings.CutSuffix(strings.TrimSuffix(e.Name(), "list"), ".conf")
		if _, kind, ok := strings.Cut(name, "-"); ok && isConf && (kind == "cilium" || kind == "cilium-cni") {
			paths = append(paths, filepath.Join(o.ConfPath, e.Name()))
		}
	}
	return o.remove(append(paths, filepath.Join(o.BinPath, ciliumPlugin))...)
}

// remove removes files and folders, of which there may be none.
func (o CiliumOptions) remove(paths ...string) error {
	var errs []error
	for _, path := range paths {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			errs = append(errs, fmt.Errorf("remove what Cilium left: %w", err))
			continue
		}
		o.Say("removed %s", path)
	}
	return errors.Join(errs...)
}

// removeFiles unmounts what is mounted in the run directory, or files of control groups would be taken for its own.
func (o CiliumOptions) removeFiles() error {
	mounts, err := os.ReadFile(filepath.Join(o.Proc, "self/mountinfo"))
	if err != nil {
		return fmt.Errorf("remove %s: %w", o.RunDir, err)
	}
	var inside []string
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], o.RunDir+"/") {
			inside = append(inside, fields[4])
		}
	}
	for _, path := range slices.Backward(inside) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
		o.Say("unmounted %s", path)
	}
	return o.remove(o.RunDir, filepath.Join(o.SysctlDir, ciliumSysctls))
}
