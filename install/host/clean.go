package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/api"
	"myelin/bandwidth"
	"myelin/bigtcp"
	"myelin/bpf"
	"myelin/cni"
	"myelin/encryption"
	"myelin/encryption/ipsec"
	"myelin/endpoint"
	"myelin/l7/control"
	"myelin/route"
	"myelin/route/tunnel"
)

// Options of Clean: where an agent keeps what, as in its configuration.
type Options struct {
	RunDir     string // myelin.runDir
	BPFRoot    string // myelin.bpfRoot
	ConfPath   string // cni.confPath
	BinPath    string // cni.binPath
	SysctlRoot string // myelin.sysctlRoot
	// Force cuts pods off that run still.
	Force bool
	// Patience is how long to wait for pods to end, before Force.
	Patience time.Duration
	// Say is told of each thing that is removed.
	Say func(format string, args ...any)
}

// podsRunError says that Clean has left what pods need that run.
type podsRunError struct{ Links []string }

// Error names the links.
func (e *podsRunError) Error() string {
	return fmt.Sprintf("%d pods run still (%s): what forwards for them stays; clean up again when they have ended, "+
		"or with --force, which cuts them off",
		len(e.Links), strings.Join(e.Links, " "))
}

// Clean removes all that agents have left on the node: first the CNI configuration, so that the runtime gives us no
// more pods; at last what the agent knew. It refuses while an agent runs. While pods run it stops after the
// configuration and the plugin, with a *podsRunError. It can be repeated. The network namespace is that of the process.
func Clean(ctx context.Context, o Options) error {
	unlock, err := o.noAgent()
	if err != nil {
		return err
	}
	defer unlock()
	if err := o.leaveRuntime(); err != nil {
		return err
	}
	if err := o.podsGone(ctx); err != nil {
		return err
	}
	kernel, err := route.OpenKernel(nil)
	if err != nil {
		return err
	}
	defer kernel.Close()
	errs := []error{o.dropPods(kernel), o.endProxies(ctx)}
	removed, err := bpf.Remove(filepath.Join(o.BPFRoot, "myelin"))
	errs = append(errs, err)
	for _, what := range removed {
		o.Say("removed %s", what)
	}
	errs = append(errs, route.Clear(ctx, kernel))
	o.Say("removed routes, neighbours and addresses of protocol %d", route.Protocol)
	errs = append(errs, o.removeDevices(kernel))
	written, err := bigtcp.Restore(kernel, filepath.Join(o.RunDir, bigtcp.File))
	for _, what := range written {
		o.Say("restored %s", what)
	}
	errs = append(errs, err)
	paced, err := bandwidth.Remove(kernel)
	if len(paced) > 0 {
		o.Say("removed the qdiscs of %d devices", len(paced))
	}
	errs = append(errs, err)
	written, err = route.RestoreSysctls(filepath.Join(o.RunDir, route.OriginalsFile), o.SysctlRoot)
	for _, what := range written {
		o.Say("set back %s", what)
	}
	errs = append(errs, err)
	if errs = append(errs, o.restoreCongestion()); errors.Join(errs...) != nil {
		return errors.Join(errs...) // the agent's files may be of use for another try
	}
	return o.removeFiles()
}

// restoreCongestion ends what BBR has changed, of the node and of pods that run still.
func (o Options) restoreCongestion() error {
	pods, podsErr := endpoint.Stored(o.RunDir)
	written, err := bandwidth.RestoreCongestion(o.RunDir, o.SysctlRoot, pods)
	for _, what := range written {
		o.Say("set back %s", what)
	}
	return errors.Join(podsErr, err)
}

// removeDevices removes those that lead to other nodes.
func (o Options) removeDevices(kernel *route.Kernel) error {
	made, tunnelErr := tunnel.Remove(kernel)
	if made {
		o.Say("removed device %s", tunnel.DeviceName)
	}
	devices, wireGuardErr := encryption.Remove(kernel)
	for _, name := range devices {
		o.Say("removed device %s", name)
	}
	made, ipsecErr := ipsec.Remove(kernel)
	if made {
		o.Say("removed device %s, its states and policies", ipsec.DeviceName)
	}
	return errors.Join(tunnelErr, wireGuardErr, ipsecErr)
}

// noAgent refuses while an agent runs, which would make it all anew, and keeps one from starting until unlock.
func (o Options) noAgent() (unlock func(), err error) {
	path := filepath.Join(o.RunDir, lockFile)
	bpf, err := claimBPFRoot(o.BPFRoot)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", o.BPFRoot, agentRuns(o.BPFRoot, err))
	}
	run, err := claim(path, os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		run, err = nil, nil
	}
	if err != nil {
		bpf.Close() // a nil one returns an error, no more
		return nil, fmt.Errorf("lock %s: %w", path, agentRuns(path, err))
	}
	return func() { run.Close(); bpf.Close() }, nil
}

// agentRuns is the error of a claim, in words where an agent has what is claimed.
func agentRuns(path string, err error) error {
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("an agent runs%s: end it first", process(holder(path)))
	}
	return err
}

// leaveRuntime takes the configuration before the plugin that it names.
func (o Options) leaveRuntime() error {
	list := filepath.Join(o.ConfPath, cni.ConflistName)
	if _, err := os.Stat(list); err == nil {
		if err := cni.RemoveConflist(o.ConfPath); err != nil {
			return err
		}
		o.Say("removed %s", list)
	}
	back, err := cni.Readmit(o.ConfPath)
	for _, name := range back {
		o.Say("gave %s its name back", filepath.Join(o.ConfPath, name))
	}
	if err != nil {
		return err
	}
	removed, err := removePlugin(o.BinPath)
	if removed {
		o.Say("removed %s", filepath.Join(o.BinPath, cni.PluginName))
	}
	return err
}

// podsGone waits until no pods are left, or patience is.
func (o Options) podsGone(ctx context.Context) error {
	return podsEnd(ctx, ourLink, o.Patience, o.Force, o.Say)
}

// podsEnd waits until no links of one kind lead to pods, or patience is over; with force it is no error then that some
// do.
func podsEnd(ctx context.Context, kind func(netlink.Link) bool, patience time.Duration, force bool,
	say func(string, ...any)) error {
	err := within(ctx, patience, say, func() error { return podsRun(kind) })
	var pods *podsRunError
	if force && ctx.Err() == nil && errors.As(err, &pods) {
		return nil
	}
	return err
}

// within has a question answered by nil for as long as patience lasts, and returns its last error then. What it waits
// for is said.
func within(ctx context.Context, patience time.Duration, say func(string, ...any), ask func() error) error {
	end, said := time.Now().Add(patience), ""
	for {
		err := ask()
		if err == nil || !time.Now().Before(end) {
			return err
		}
		if text := err.Error(); text != said {
			say("waiting: %s", text)
			said = text
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// podsRun is a *podsRunError where links of one kind lead to pods.
func podsRun(kind func(netlink.Link) bool) error {
	links, err := podLinks(kind)
	if err == nil && len(links) > 0 {
		return &podsRunError{Links: links}
	}
	return err
}

// podLinks are those of one kind whose other side is in a namespace that lives.
func podLinks(kind func(netlink.Link) bool) (names []string, err error) {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list pod links: %w", err)
	}
	for _, l := range links {
		// As in endpoint.Manager.Strays: -1 is a namespace that is about to end.
		if a := l.Attrs(); kind(l) && int32(a.NetNsID) >= 0 {
			names = append(names, a.Name)
		}
	}
	return names, nil
}

func ourLink(l netlink.Link) bool {
	return endpoint.IsLinkName(l.Attrs().Name) && (l.Type() == "veth" || l.Type() == "netkit")
}

// dropPods removes pod links: those of no pod, and with Force all.
func (o Options) dropPods(kernel *route.Kernel) error {
	links, err := kernel.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list pod links: %w", err)
	}
	var errs []error
	for _, l := range links {
		if !ourLink(l) {
			continue
		}
		if err := kernel.LinkDel(l); err != nil {
			if _, gone := kernel.LinkByIndex(l.Attrs().Index); gone == nil {
				errs = append(errs, fmt.Errorf("remove pod link %s: %w", l.Attrs().Name, err))
			}
			continue
		}
		o.Say("removed pod link %s", l.Attrs().Name)
	}
	return errors.Join(errs...)
}

// agentFiles are what agents keep in the run directory: what else is there is not ours.
func agentFiles() []string {
	return []string{
		"endpoints", "cni-deletes", "services", "identities.json", "podcidrs.json", "services.json", "backends.json",
		"backend-states.json", bigtcp.File, filepath.Base(control.Dir("")), filepath.Base(encryption.Dir("")),
		lockFile, bandwidth.OriginalsFile, "policy-last-good.json", "policy-peers.json", "policy-rules.json",
		filepath.Base(api.DefaultSocket),
		filepath.Base(api.DefaultSocket) + ".lock", api.ObserverSocket, api.ObserverSocket + ".lock",
	}
}

func (o Options) removeFiles() error {
	unmounted, err := unmountCgroup(o.RunDir)
	if err != nil {
		return err
	}
	if unmounted {
		o.Say("unmounted %s", filepath.Join(o.RunDir, cgroupDir))
	}
	for _, name := range agentFiles() {
		for _, suffix := range []string{"", ".tmp"} {
			if err := os.RemoveAll(filepath.Join(o.RunDir, name+suffix)); err != nil {
				return fmt.Errorf("remove the agent's files: %w", err)
			}
		}
	}
	left, err := os.ReadDir(o.RunDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the agent's files: %w", err)
	}
	if len(left) > 0 {
		o.Say("left %s: it has files that are not ours, %s among them", o.RunDir, left[0].Name())
		return nil
	}
	if err := os.Remove(o.RunDir); err != nil {
		return fmt.Errorf("remove the agent's files: %w", err)
	}
	o.Say("removed %s", o.RunDir)
	return nil
}
