package service

import (
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

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/cluster"
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
		err = errors.Join(err, netlink.AddrAdd(lo, &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice()), Flags: unix.IFA_F_NODAD}))
	}
	if err = errors.Join(err, netns.Set(was)); err != nil {
		t.Fatal(err)
	}
	return &room{t: t, ns: ns, path: fmt.Sprintf("/proc/self/fd/%d", int(ns))}
}

// dial connects a socket, and says of it what connect4 would if a Service had sent it to the backend; 0: it asked for none.
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
	failed := raw.Control(func(fd uintptr) { cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) })
	key := bpf.DatapathOriginKey{Cookie: cookie, Addr: bpf.Addr(to.Addr()), Port: bpf.Port(to.Port())}
	if err := errors.Join(failed, err, d.Origins.Put(key, bpf.DatapathOrigin{Port: bpf.Port(53), Backend: backend})); err != nil {
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
func dns(family string, vip netip.Addr, backends ...netip.Addr) objects {
	part := &cluster.EndpointSlice{
		Namespace: "x", Name: "dns", Service: "dns", AddressType: family, Ports: []cluster.SlicePort{{Port: 5353, Protocol: "UDP"}},
	}
	for _, a := range backends {
		part.Endpoints = append(part.Endpoints, cluster.Endpoint{Address: a, Ready: true, Serving: true})
	}
	return objects{Slices: []*cluster.EndpointSlice{part}, Services: []*cluster.Service{{
		Namespace: "x", Name: "dns", Type: "ClusterIP", ClusterIPs: []netip.Addr{vip}, Families: []string{family},
		Ports: []cluster.ServicePort{{Port: 53, Protocol: "UDP"}},
	}}}
}

// Sockets end with their backend, whichever way the kernel does it: when it has gone, not when it terminates, also where another one has its address since;
// and none that asked for no Service.
func TestTerminate(t *testing.T) {
	for family, a := range map[string][3]string{"IPv4": {"10.96.0.1", "10.1.0.1", "10.1.0.2"}, "IPv6": {"fd00:96::1", "fd00:1::1", "fd00:1::2"}} {
		for way, netlink := range map[string]bool{"netlink": true, "bpf_sock_destroy": false} {
			t.Run(family+" by "+way, func(t *testing.T) {
				terminate(t, family, netip.MustParseAddr(a[0]), netip.MustParseAddr(a[1]), netip.MustParseAddr(a[2]), netlink)
			})
		}
	}
}

// terminator is one that ends sockets by netlink, or by bpf_sock_destroy, which the kernel must have.
func (r *rig) terminator(t *testing.T, netlink bool, paths ...string) *Terminator {
	t.Helper()
	term := NewTerminator(slog.New(slog.DiscardHandler), r.Kernel, func() []string { return paths })
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
	r := newRig(t, Config{}, small())
	both := dns(family, vip, stays, goes)
	r.world.set(t, both)
	if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	pod := newRoom(t, stays, goes)
	term := r.terminator(t, netlink, pod.path, "/nowhere")
	number := func(a netip.Addr) uint32 {
		b, _, ok := r.Desired.Backends.Get(r.DB.ReadTxn(), BackendByAddress(L4(a, 5353, UDP)))
		if !ok {
			t.Fatalf("%s is no backend", a)
		}
		return b.ID
	}
	to := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 5353) }
	kept, lost, direct := pod.dial(r.datapath, to(stays), number(stays)), pod.dial(r.datapath, to(goes), number(goes)), pod.dial(r.datapath, to(goes), 0)
	sync := func() {
		t.Helper()
		if err := r.sync(); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string, woken, ended bool) {
		t.Helper()
		sync()
		select {
		case <-r.gone:
			if !woken {
				t.Errorf("%s: sockets are looked through", when)
			}
		default:
			if woken {
				t.Errorf("%s: nobody looks through sockets", when)
			}
		}
		if err := term.look(); err != nil {
			t.Error(err)
		}
		if aborted(t, kept) || aborted(t, lost) != ended || aborted(t, direct) {
			t.Errorf("%s: not the right sockets have ended", when)
		}
	}
	check("all are there", false, false)
	r.world.put(t, with(both.Slices[0], 1, drain))
	check("one terminates", false, false)
	r.world.set(t, dns(family, vip, stays))
	check("one has gone", true, true)
	r.world.set(t, both)
	sync()
	kept, lost = pod.dial(r.datapath, to(stays), number(stays)), pod.dial(r.datapath, to(goes), number(goes))
	r.world.set(t, dns(family, vip, stays))
	sync()
	r.world.set(t, both)
	check("another one has its address", true, true)
	if got := term.Status(); got.Ended != 2 || got.Problem != "" {
		t.Errorf("got %+v, want two sockets", got)
	}
}

// A namespace that can't be asked is a problem as long as it is there, and keeps no other from being asked.
func TestTerminateProblem(t *testing.T) {
	r := newRig(t, Config{}, small())
	bad := t.TempDir()
	paths := []string{bad}
	term := NewTerminator(slog.New(slog.DiscardHandler), r.Kernel, func() []string { return paths })
	if err := term.look(); err == nil || term.Status().Problem != err.Error() {
		t.Errorf("got %v, %+v, want a problem with %s", err, term.Status(), bad)
	}
	paths = nil
	if err := term.look(); err != nil || term.Status().Problem != "" {
		t.Errorf("got %v, %+v, want none", err, term.Status())
	}
}
