package termination

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/cluster"
	"myelin/cluster/clustertest"
	"myelin/service"
	"myelin/service/maps"
	"myelin/service/servicetest"
)

// room is a network namespace whose loopback has the addresses of backends.
type room struct {
	t    *testing.T
	ns   netns.NsHandle
	path string
}

func newRoom(t *testing.T, addrs ...netip.Addr) *room {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer was.Close()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	for _, a := range addrs {
		err = errors.Join(err, netlink.AddrAdd(lo, &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice()),
			Flags: unix.IFA_F_NODAD}))
	}
	if err = errors.Join(err, netns.Set(was)); err != nil {
		t.Fatal(err)
	}
	return &room{t: t, ns: ns, path: fmt.Sprintf("/proc/self/fd/%d", int(ns))}
}

// dial connects a socket, and records its backend as connect4 would if a Service had selected it. With backend 0 the
// socket did not connect to a Service.
func (r *room) dial(d *bpf.Datapath, to netip.AddrPort, backend uint32) *net.UDPConn {
	r.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, err := netns.Get()
	if err != nil {
		r.t.Fatal(err)
	}
	defer was.Close()
	if err := netns.Set(r.ns); err != nil {
		r.t.Fatal(err)
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err = errors.Join(err, netns.Set(was)); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	if backend == 0 {
		return c
	}
	raw, err := c.SyscallConn()
	if err != nil {
		r.t.Fatal(err)
	}
	var cookie uint64
	failed := raw.Control(func(fd uintptr) {
		cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
	})
	key := bpf.DatapathOriginKey{Cookie: cookie, Addr: bpf.Addr(to.Addr()), Port: bpf.Port(to.Port())}
	if err := errors.Join(failed, err, d.Origins.Put(key,
		bpf.DatapathOrigin{Port: bpf.Port(53), Backend: backend})); err != nil {
		r.t.Fatal(err)
	}
	return c
}

// aborted reports whether the socket was ended.
func aborted(t *testing.T, c *net.UDPConn) bool {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	if !errors.Is(err, syscall.ECONNABORTED) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	return errors.Is(err, syscall.ECONNABORTED)
}

// dns is a UDP Service with these backends.
func dns(family string, vip netip.Addr, backends ...netip.Addr) clustertest.Objects {
	part := &cluster.EndpointSlice{
		Namespace: "x", Name: "dns", Service: "dns", AddressType: family,
		Ports: []cluster.SlicePort{{Port: 5353, Protocol: "UDP"}},
	}
	for _, a := range backends {
		part.Endpoints = append(part.Endpoints, cluster.Endpoint{Address: a, Ready: true, Serving: true})
	}
	return clustertest.Objects{Slices: []*cluster.EndpointSlice{part}, Services: []*cluster.Service{{
		Namespace: "x", Name: "dns", Type: "ClusterIP", ClusterIPs: []netip.Addr{vip}, Families: []string{family},
		Ports: []cluster.ServicePort{{Port: 53, Protocol: "UDP"}},
	}}}
}

// Sockets end when their backend is deleted, and not when it terminates, by both methods, also if another backend has
// its address by now. Sockets that did not connect to a Service are left alone.
func TestTerminate(t *testing.T) {
	for family, a := range map[string][3]string{"IPv4": {"10.96.0.1", "10.1.0.1", "10.1.0.2"},
		"IPv6": {"fd00:96::1", "fd00:1::1", "fd00:1::2"}} {
		for way, netlink := range map[string]bool{"netlink": true, "bpf_sock_destroy": false} {
			t.Run(family+" by "+way, func(t *testing.T) {
				terminate(t, family, netip.MustParseAddr(a[0]), netip.MustParseAddr(a[1]), netip.MustParseAddr(a[2]),
					netlink)
			})
		}
	}
}

// rig is a cluster as one node sees it, and that node's maps.
type rig struct {
	*servicetest.Cluster
	datapath *bpf.Datapath
	kernel   *maps.Kernel
	seen     statedb.ReadTxn // what sync has written
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Cluster: servicetest.New(t, service.Config{}, ""), datapath: bpftest.LoadMaps(t, bpf.Settings{}, nil)}
	r.seen = r.DB.ReadTxn()
	var err error
	r.kernel, err = maps.New(maps.Params{
		Log: slog.New(slog.DiscardHandler), DB: r.DB, Tables: r.Desired, Datapath: r.datapath,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sync writes what has changed since it was called last.
func (r *rig) sync(t *testing.T) {
	t.Helper()
	ctx, now := context.Background(), r.DB.ReadTxn()
	frontends, backends := r.kernel.Operations()
	err := errors.Join(
		servicetest.Apply(ctx, frontends, r.seen, now, r.Desired.Frontends, (*service.Frontend).L4),
		servicetest.Apply(ctx, backends, r.seen, now, r.Desired.Backends, (*service.Backend).L4))
	r.seen = now
	if err != nil {
		t.Fatal(err)
	}
}

// terminator ends sockets over netlink, or by bpf_sock_destroy, which the kernel must have.
func (r *rig) terminator(t *testing.T, netlink bool, paths ...string) *Terminator {
	t.Helper()
	term := New(Params{
		Log: slog.New(slog.DiscardHandler), Datapath: r.datapath, Namespaces: func() []string { return paths },
	})
	t.Cleanup(term.close)
	if why := term.Status(); why.Why != "" || !netlink && why.Netlink != "" {
		t.Fatalf("got %+v", why)
	}
	if netlink {
		term.close()
		term.destroyer = nil
	}
	return term
}

func terminate(t *testing.T, family string, vip, stays, goes netip.Addr, netlink bool) {
	r := newRig(t)
	both := dns(family, vip, stays, goes)
	r.Set(t, both)
	r.sync(t)
	pod := newRoom(t, stays, goes)
	term := r.terminator(t, netlink, pod.path, "/nowhere")
	number := func(a netip.Addr) uint32 {
		b, _, ok := r.Desired.Backends.Get(r.DB.ReadTxn(), service.BackendByAddress(service.L4(a, 5353, service.UDP)))
		if !ok {
			t.Fatalf("%s is no backend", a)
		}
		return b.ID
	}
	dial := func(a netip.Addr, backend uint32) *net.UDPConn {
		return pod.dial(r.datapath, netip.AddrPortFrom(a, 5353), backend)
	}
	kept, lost, direct := dial(stays, number(stays)), dial(goes, number(goes)), dial(goes, 0)
	check := func(when string, woken, ended bool) {
		t.Helper()
		r.sync(t)
		select {
		case <-r.kernel.UDPBackendGone():
			if !woken {
				t.Errorf("%s: sockets are looked through", when)
			}
		default:
			if woken {
				t.Errorf("%s: sockets are not scanned", when)
			}
		}
		if err := term.scan(); err != nil {
			t.Error(err)
		}
		if aborted(t, kept) || aborted(t, lost) != ended || aborted(t, direct) {
			t.Errorf("%s: not the right sockets have ended", when)
		}
	}
	check("all are there", false, false)
	r.PutSlice(t, servicetest.With(both.Slices[0], 1, servicetest.Drain))
	check("one terminates", false, false)
	r.Set(t, dns(family, vip, stays))
	check("one has gone", true, true)
	r.Set(t, both)
	r.sync(t)
	kept, lost = dial(stays, number(stays)), dial(goes, number(goes))
	r.Set(t, dns(family, vip, stays))
	r.sync(t)
	r.Set(t, both)
	check("another one has its address", true, true)
	if got := term.Status(); got.Ended != 2 || got.Problem != "" {
		t.Errorf("got %+v, want two sockets", got)
	}
}

// A namespace that cannot be scanned is a problem while it exists, and does not prevent scanning others.
func TestTerminateProblem(t *testing.T) {
	r := newRig(t)
	bad := t.TempDir()
	paths := []string{bad}
	term := New(Params{
		Log: slog.New(slog.DiscardHandler), Datapath: r.datapath, Namespaces: func() []string { return paths },
	})
	if err := term.scan(); err == nil || term.Status().Problem != err.Error() {
		t.Errorf("got %v, %+v, want a problem with %s", err, term.Status(), bad)
	}
	paths = nil
	if err := term.scan(); err != nil || term.Status().Problem != "" {
		t.Errorf("got %v, %+v, want none", err, term.Status())
	}
}
