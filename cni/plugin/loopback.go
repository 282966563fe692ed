package plugin

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
)

// LoopbackName is the plugin that containerd before 2.0 executes for each
// sandbox beside the configured ones; without it no pod starts. The binary is
// that plugin too, under that name.
const LoopbackName = "loopback"

// LoopbackFuncs returns the commands of the plugin loopback, which asks no
// agent.
func LoopbackFuncs() skel.CNIFuncs {
	return skel.CNIFuncs{
		Add: loopbackAdd, Check: loopbackCheck,
		// lo goes with its namespace, and there is nothing to wait for.
		Del:    func(*skel.CmdArgs) error { return nil },
		Status: func(*skel.CmdArgs) error { return nil },
		GC:     func(*skel.CmdArgs) error { return nil },
	}
}

func loopbackAdd(args *skel.CmdArgs) error {
	speaks, err := (&version.ConfigDecoder{}).Decode(args.StdinData)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, "configuration of loopback can't be read", err.Error())
	}
	err = inNamespace(args.Netns, func() error {
		flags, socket, err := linkFlags(args.IfName)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		flags.SetUint16(flags.Uint16() | unix.IFF_UP)
		return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, flags)
	})
	if err != nil {
		return types.NewError(types.ErrInternal, fmt.Sprintf("%s can't be set up", args.IfName), err.Error())
	}
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion, Interfaces: []*current.Interface{
		{Name: args.IfName, Mac: "00:00:00:00:00:00", Sandbox: args.Netns},
	}}
	return types.PrintResult(result, speaks)
}

func loopbackCheck(args *skel.CmdArgs) error {
	err := inNamespace(args.Netns, func() error {
		flags, socket, err := linkFlags(args.IfName)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		if flags.Uint16()&unix.IFF_UP == 0 {
			return errors.New("it is down")
		}
		return nil
	})
	if err != nil {
		return types.NewError(types.ErrInternal, fmt.Sprintf("%s is not as it should be", args.IfName), err.Error())
	}
	return nil
}

// linkFlags reads a link's flags by a socket that the caller closes.
func linkFlags(link string) (*unix.Ifreq, int, error) {
	flags, err := unix.NewIfreq(link)
	if err != nil {
		return nil, 0, fmt.Errorf("link %q: %w", link, err)
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("open a socket: %w", err)
	}
	if err := unix.IoctlIfreq(socket, unix.SIOCGIFFLAGS, flags); err != nil {
		unix.Close(socket)
		return nil, 0, fmt.Errorf("read the flags of %s: %w", link, err)
	}
	return flags, socket, nil
}

// inNamespace runs f in the network namespace of a file. The thread ends with
// it, so that nothing else of the process is ever in there.
func inNamespace(path string, f func() error) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open the network namespace: %w", err)
	}
	defer file.Close()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter %s: %w", path, err)
			return
		}
		done <- f()
	}()
	return <-done
}
