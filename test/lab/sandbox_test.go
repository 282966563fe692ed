package labtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"myelin/lab"
)

// runtimeOf calls the CNI plugin of a node as its container runtime does, without the lab's supervisor between.
type runtimeOf struct {
	node *lab.Node
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
	lab  string
}

func (c *cluster) runtime(node string) *runtimeOf {
	c.t.Helper()
	n := c.Node(node)
	list, err := n.Conflist()
	if err != nil {
		c.t.Fatal(err)
	}
	return &runtimeOf{node: n, cni: n.CNI(), list: list, lab: c.Name()}
}

// start makes so many sandboxes and adds them.
func (r *runtimeOf) start(t *testing.T, n int) (list []*sandbox) {
	t.Helper()
	for i := range n {
		s, err := r.create(i)
		check(t, err)
		check(t, r.add(t.Context(), s))
		list = append(list, s)
	}
	return list
}

// sandbox is a pod without a process: a namespace and, after ADD, a network.
type sandbox struct {
	name  string
	addrs []netip.Addr
}

func (s *sandbox) end() end { return end{foreign(s.name), s.addrs} }

// create makes the namespace, under a name that the lab's end removes.
func (r *runtimeOf) create(i int) (*sandbox, error) {
	s := &sandbox{name: fmt.Sprintf("%s-pod%d", r.lab, i)}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is in the new namespace, and ends
		ns, err := netns.NewNamed(s.name)
		if err == nil {
			err = ns.Close()
		}
		made <- err
	}()
	return s, <-made
}

func (r *runtimeOf) config(s *sandbox) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: s.name, NetNS: "/run/netns/" + s.name, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "churn"}, {"K8S_POD_NAME", s.name},
			{"K8S_POD_UID", s.name}},
	}
}

func (r *runtimeOf) add(ctx context.Context, s *sandbox) error {
	got, err := r.cni.AddNetworkList(ctx, r.list, r.config(s))
	if err != nil {
		return fmt.Errorf("ADD %s: %w", s.name, err)
	}
	result, err := types100.NewResultFromResult(got)
	if err != nil {
		return err
	}
	for _, ip := range result.IPs {
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return fmt.Errorf("ADD %s: address %v", s.name, ip.Address)
		}
		s.addrs = append(s.addrs, a.Unmap())
	}
	return nil
}

func (r *runtimeOf) del(ctx context.Context, s *sandbox) error {
	if err := r.cni.DelNetworkList(ctx, r.list, r.config(s)); err != nil {
		return fmt.Errorf("DEL %s: %w", s.name, err)
	}
	return nil
}

// remove removes the namespace.
func (s *sandbox) remove() error {
	path := "/run/netns/" + s.name
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err,
		unix.ENOENT) {
		return fmt.Errorf("remove namespace %s: %w", s.name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// addAll makes n pods at once, numbered from first, and calls each with how many ADDs have succeeded, when one has.
// Whose ADD succeeds must have addresses of its own.
func (c *churner) addAll(ctx context.Context, first, n int, each func(succeeded int)) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	var succeeded atomic.Int64
	for i := range n {
		wg.Go(func() {
			s, err := c.create(first + i)
			if err == nil {
				err = c.add(ctx, s)
			}
			if err == nil {
				err = c.take(s)
				each(int(succeeded.Add(1)))
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return errs
}
