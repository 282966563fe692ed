// Package proxy is the process that enforces L7 rules: it accepts the connections that the datapath redirects, opens
// those to the servers, and passes DNS messages on. It outlives the agent.
package proxy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"myelin/l7/control"
)

// DeviceName is the name of the TUN device that DNS messages pass through, in the node's network namespace.
const DeviceName = "myelin_dns"

// inheritedEnv has the descriptors of the TUN device's queues, in a process that is in the proxy's network namespace.
const inheritedEnv = "MYELIN_PROXY_QUEUES"

// maxQueues bounds the queues of the TUN device. Each has a thread that waits for a packet.
const maxQueues = 4

// queueCount is one queue for two CPUs: with more, the threads take turns on the CPUs that clients and servers use, and
// each reads fewer packets before it sleeps again. A thread passes some 30,000 queries a second.
func queueCount(cpus int) int { return min(max(cpus/2, 1), maxQueues) }

// Enter opens the TUN device, and executes the process again in the proxy's network namespace: that of a proxy that
// runs already, or a new one. There it returns the queues of the device. All threads of the process are in the
// namespace then, so that sockets need no care.
func Enter(runDir string) ([]*os.File, error) {
	if inherited := os.Getenv(inheritedEnv); inherited != "" {
		return queues(inherited)
	}
	descriptors := make([]string, queueCount(runtime.NumCPU()))
	for i := range descriptors {
		fd, err := openQueue(DeviceName)
		if err != nil {
			return nil, fmt.Errorf("open TUN device %s: %w", DeviceName, err)
		}
		descriptors[i] = strconv.Itoa(fd)
	}
	runtime.LockOSThread() // exec continues with this thread's namespace
	if err := enterNamespace(runDir); err != nil {
		return nil, err
	}
	env := append(os.Environ(), inheritedEnv+"="+strings.Join(descriptors, ","))
	return nil, fmt.Errorf("execute itself: %w", syscall.Exec("/proc/self/exe", os.Args, env))
}

func enterNamespace(runDir string) error {
	running, err := control.Namespace(runDir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the network namespace of the proxy that runs: %w", err)
	}
	defer running.Close()
	if err := unix.Setns(int(running.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network namespace of the proxy that runs: %w", err)
	}
	return nil
}

// openQueue opens a queue of a TUN device, which is made if it is not there, and goes with its last queue.
func openQueue(name string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK, 0) // inherited by exec
	if err != nil {
		return 0, err
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_MULTI_QUEUE)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func queues(inherited string) ([]*os.File, error) {
	var files []*os.File
	for _, text := range strings.Split(inherited, ",") {
		fd, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", inheritedEnv, err)
		}
		unix.CloseOnExec(fd)
		files = append(files, os.NewFile(uintptr(fd), DeviceName))
	}
	return files, os.Unsetenv(inheritedEnv)
}
